// The query cache: what it gives and saves, how old its answers are, what drops them, and which statements would gain.

import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";

import { get, type Cache, type CachePool, type CacheRule, type FollowedDatabase, type Series, type Statement, type Statements } from "../api";
import { drops, ending, gains, hindrance, obstacle, oldest, quotient, ratio, ratios, reachable, setting, total, unserved, wrongAnswers, type Drop, type Gain, type Unserved } from "../cache";
import { bytes, count, duration, percent, rate, span } from "../format";
import { type Live, useLive, useSeries } from "../live";
import { useServices } from "../context";
import { Chart, type Line } from "../parts/chart";
import { WindowPicker } from "../parts/charts";
import { Badge, Fingerprint, Placeholder, Two } from "../parts/small";
import { Table, type ColumnOf } from "../parts/table";
import { column, sum } from "../series";

interface Props {
  windowS: number;
  pick: (seconds: number) => void;
}

export function CachePage({ windowS, pick }: Props) {
  const { session } = useServices();
  const live = useLive<Cache>(`cache ${session.role}`, 1_000, () => get("cache"));
  const series = useSeries(windowS);
  const now = live.value;
  if (!now) return <Placeholder fault={live.fault}>Loading …</Placeholder>;
  return (
    <>
      <section aria-labelledby="cache">
        <h2 id="cache">Query cache {now.query_cache === "off" && <Badge tone="">off</Badge>}</h2>
        <p class="lead">{setting(now)}</p>
        {now.query_cache !== "off" && <Wrong pools={now.pools} />}
        {now.query_cache !== "off" && <Vitals now={now} />}
        <Followed now={now} />
        <Rules now={now} />
        <NotServed rows={unserved(now)} />
      </section>
      <Gainers />
      {now.query_cache !== "off" && (
        <>
          <OverTime series={series} now={now} windowS={windowS} pick={pick} />
          <section aria-labelledby="drops">
            <h2 id="drops">What drops answers</h2>
            <p class="hint">Answers that were not kept, not given to a client, or dropped. Since each pool's first client.</p>
            <Table label="What drops answers" columns={DROPS} rows={drops(now.pools)} keyOf={(drop) => drop.reason} none="" />
          </section>
          <section aria-labelledby="cache-pools">
            <h2 id="cache-pools">Pools</h2>
            <Table label="Pools" columns={POOLS} rows={now.pools} keyOf={(pool) => `${pool.database} ${pool.user}`} none="No pool yet: no client has connected." />
          </section>
        </>
      )}
    </>
  );
}

/** Answers that were wrong: nothing on this page is more urgent. */
function Wrong({ pools }: { pools: CachePool[] }) {
  const found = wrongAnswers(pools);
  if (!found) return null;
  return (
    <div class="notice bad">
      <p><Badge tone="bad">{found.text}</Badge> {found.remedy}</p>
    </div>
  );
}

function Vitals({ now }: { now: Cache }) {
  const { pools } = now;
  const share = ratio(total(pools, "hits"), total(pools, "misses"));
  const age = oldest(pools);
  return (
    <dl class="vitals">
      <Vital term="statements answered without PostgreSQL">{count(total(pools, "hits"))}</Vital>
      <Vital term="of the statements that a rule names were answered so">{share === null ? "–" : percent(share)}</Vital>
      <Vital term="of PostgreSQL's time saved" hint="for each hit, the statement's mean time at PostgreSQL at that moment">{duration(total(pools, "saved_us"))}</Vital>
      <Vital term="was the oldest answer given">{age === null ? "–" : duration(age * 1_000)}</Vital>
      <Vital term="answers are kept">{count(total(pools, "answers"))}</Vital>
      <Vital term={`of ${bytes(now.bytes_max)} are used`}>{bytes(total(pools, "bytes"))}</Vital>
      {total(pools, "verified") > 0 && <Vital term="kept answers were compared with PostgreSQL's" hint={verifying(now)}>{count(total(pools, "verified"))}</Vital>}
    </dl>
  );
}

function verifying({ query_cache_verify: every }: Cache): string {
  return every === 0 ? "none is compared now (query_cache_verify = 0)" : `a server answers one of ${count(every)} hits, and pgweir compares (query_cache_verify)`;
}

function Vital({ term, hint, children }: { term: string; hint?: string; children: ComponentChildren }) {
  return (
    <div title={hint}>
      <dt>{term}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** The databases whose changes are followed, or why they are not. */
function Followed({ now }: { now: Cache }) {
  if (now.followed.length === 0) return null;
  return (
    <>
      <h3>Followed databases</h3>
      <p class="hint">Answers of rules with follow=wal are kept only while the state of their database is "following".</p>
      <Table label="Followed databases" columns={followedColumns(now.time_s)} rows={now.followed} keyOf={(one) => one.database} none="" />
    </>
  );
}

function Rules({ now }: { now: Cache }) {
  if (now.rules.length === 0) return null;
  return (
    <>
      <h3>Rules</h3>
      <Table label="Rules" columns={now.query_cache === "coalesce" ? RULES : [...RULES, UNTIL]} rows={now.rules} keyOf={(rule) => rule.name} none="" />
    </>
  );
}

function NotServed({ rows }: { rows: Unserved[] }) {
  if (rows.length === 0) return null;
  return (
    <>
      <h3>Not served</h3>
      <Table label="Not served" columns={UNSERVED} rows={rows} keyOf={(row) => `${row.pool} ${row.why}`} none="" />
    </>
  );
}

/** The statements that gain most, or would, with what stands in their way. */
function Gainers() {
  const { session, signIn } = useServices();
  const ask = (sort: string, limit: number) => get<Statements>("statements", { sort, limit });
  const live = useLive(`gains ${session.role}`, 3_000, () => Promise.all([ask("server_us", 200), ask("cache_saved_us", 20)]));
  const refused = !live.value && (live.fault?.status === 403 || live.fault?.status === 401);
  return (
    <section aria-labelledby="gains">
      <h2 id="gains">Statements that gain most, or would</h2>
      {refused ? (
        <div class="none">
          <p>Statements are shown to those who sign in.</p>
          {session.sign_in && session.role === "anonymous" && <p><button type="button" onClick={signIn}>Sign in</button></p>}
        </div>
      ) : (
        <GainTable live={live} />
      )}
    </section>
  );
}

function GainTable({ live }: { live: Live<[Statements, Statements]> }) {
  if (!live.value) return <Placeholder fault={live.fault}>Loading …</Placeholder>;
  const [byTime, bySaved] = live.value;
  if (!byTime.enabled) return <p class="none">pgweir does not follow statements: the setting statement_stats_bytes is 0.</p>;
  const rows = gains(byTime.statements, bySaved.statements);
  const more = reachable(rows);
  return (
    <>
      <p class="hint">
        By the time at PostgreSQL that hits saved, and the time that remains: the most that the cache can still save. How much it does save depends on
        how often the same values are asked for.{more > 0 && ` Settings alone stand in the way of ${duration(more)}.`}
      </p>
      <Table label="Statements that gain most" columns={GAINS} rows={rows} keyOf={({ statement }) => keyOf(statement)} none="No read that was executed twice yet." />
    </>
  );
}

function keyOf(one: Statement): string {
  return `${one.fingerprint} ${one.database} ${one.user}`;
}

function Obstacle({ cache }: { cache: string }) {
  const { text, remedy, can } = obstacle(cache);
  return (
    <>
      {text === "nothing" ? <span class="quiet">{text}</span> : <Badge tone={can ? "attention" : ""}>{text}</Badge>}
      {remedy !== null && <span class="under">{remedy}</span>}
    </>
  );
}

const GAINS: ColumnOf<Gain>[] = [
  { title: "Statement", long: true, cell: ({ statement }) => <><code class="sql">{statement.text}</code> <Fingerprint of={statement.fingerprint} /></> },
  { title: "Saved", num: true, hint: "time at PostgreSQL that hits saved", by: (one) => one.saved_us, cell: (one) => duration(one.saved_us) },
  { title: "Hits", num: true, by: ({ statement }) => statement.cache_hits ?? 0, cell: ({ statement }) => count(statement.cache_hits ?? 0) },
  { title: "At PostgreSQL", num: true, hint: "time that remains: the most that the cache can still save", by: (one) => one.left_us, cell: (one) => duration(one.left_us) },
  { title: "Calls", num: true, by: ({ statement }) => statement.calls, cell: ({ statement }) => count(statement.calls) },
  { title: "What stands in the way", by: ({ statement }) => statement.cache ?? "", cell: ({ statement }) => <Obstacle cache={statement.cache ?? ""} /> },
  { title: "Where", by: ({ statement }) => `${statement.database} ${statement.user}`, cell: ({ statement }) => <Two first={statement.database} second={statement.user} /> },
];

const RULES: ColumnOf<CacheRule>[] = [
  { title: "Rule", cell: (rule) => rule.name },
  { title: "Database", cell: (rule) => rule.database ?? "any" },
  { title: "User", cell: (rule) => rule.user ?? "any" },
  { title: "Application", cell: (rule) => rule.application_name ?? "any" },
  { title: "Tables", cell: (rule) => rule.tables.join(", ") || "any" },
];

/** Not with `query_cache=coalesce`: no answer is kept. */
const UNTIL: ColumnOf<CacheRule> = { title: "An answer is given until", hint: "follow and ttl_ms", cell: ending };

const FOLLOW_TONES: Record<string, string> = { following: "active", opening: "waiting", off: "bad" };

function followedColumns(now_s: number): ColumnOf<FollowedDatabase>[] {
  return [
    { title: "Database", cell: (one) => one.database, by: (one) => one.database },
    { title: "State", head: true, by: (one) => one.state, cell: (one) => <Badge tone={FOLLOW_TONES[one.state] ?? ""}>{one.state}</Badge> },
    { title: "For", num: true, hint: "how long it has been in this state", cell: (one) => (one.since_s === null ? "–" : span(now_s - one.since_s)) },
    { title: "Tables", num: true, hint: "tables whose answers can be kept", cell: (one) => (one.tables === null ? "–" : count(one.tables)) },
    { title: "Log not read yet", num: true, hint: "of PostgreSQL's write-ahead log; bounded by query_cache_lag_bytes", cell: (one) => (one.lag_bytes === null ? "–" : bytes(one.lag_bytes)) },
    { title: "Why not followed", long: true, cell: (one) => hindrance(one) ?? "–" },
  ];
}

const UNSERVED: ColumnOf<Unserved>[] = [
  { title: "Pool", cell: (row) => row.pool },
  { title: "Why its clients are not answered from the cache", long: true, cell: (row) => row.why },
];

const DROPS: ColumnOf<Drop>[] = [
  { title: "Reason", cell: (drop) => drop.reason },
  { title: "Times", num: true, cell: (drop) => count(drop.count) },
  { title: "Meaning", long: true, cell: (drop) => drop.meaning },
];

const POOLS: ColumnOf<CachePool>[] = [
  { title: "Pool", cell: (pool) => <Two first={pool.database} second={pool.user} />, by: (pool) => `${pool.database} ${pool.user}` },
  { title: "State", cell: (pool) => pool.states.join("; ") },
  { title: "Hits", num: true, by: (pool) => pool.hits, cell: (pool) => count(pool.hits) },
  { title: "Of clients that waited", num: true, by: (pool) => pool.coalesced, cell: (pool) => count(pool.coalesced) },
  { title: "Misses", num: true, by: (pool) => pool.misses, cell: (pool) => count(pool.misses) },
  { title: "Answers", num: true, by: (pool) => pool.answers, cell: (pool) => count(pool.answers) },
  { title: "Memory", num: true, by: (pool) => pool.bytes, cell: (pool) => bytes(pool.bytes) },
  { title: "Age p50", num: true, hint: "half of the given answers were younger", by: (pool) => pool.age_p50_ms ?? 0, cell: (pool) => (pool.age_p50_ms === null ? "–" : duration(pool.age_p50_ms * 1_000)) },
  { title: "Oldest", num: true, hint: "the oldest answer that was given", by: (pool) => pool.age_max_ms ?? 0, cell: (pool) => (pool.age_max_ms === null ? "–" : duration(pool.age_max_ms * 1_000)) },
  { title: "Saved", num: true, hint: "time at PostgreSQL", by: (pool) => pool.saved_us, cell: (pool) => duration(pool.saved_us) },
];

function OverTime({ series, now, windowS, pick }: { series: Live<Series>; now: Cache; windowS: number; pick: (seconds: number) => void }) {
  return (
    <section aria-labelledby="time">
      <div class="section-head">
        <h2 id="time">Over time</h2>
        <WindowPicker windowS={windowS} pick={pick} />
      </div>
      {series.value && series.value.time_s.length > 0 ? <Charts series={series.value} now={now} windowS={windowS} /> : <Placeholder fault={series.fault}>The first second is being measured …</Placeholder>}
    </section>
  );
}

function Charts({ series, now, windowS }: { series: Series; now: Cache; windowS: number }) {
  const lines = useMemo(() => lineSets(series, now.bytes_max), [series, now.bytes_max]);
  const common = { times: series.time_s, windowS, end: series.time_s.at(-1) ?? now.time_s };
  return (
    <div class="charts">
      <Chart {...common} id="cache-hits" title="Hits and misses" hint="Statements that a rule names, per second." lines={lines.hits} format={rate} atLeast={5} />
      <Chart {...common} id="cache-ratio" title="Hit ratio" hint="Of these statements, those that were answered without PostgreSQL." lines={lines.ratio} format={percent} atLeast={1} />
      <Chart {...common} id="cache-age" title="Age of answers" hint="The mean age of the answers that were given. Answers for clients that waited do not count." lines={lines.age} format={duration} atLeast={1_000} />
      <Chart {...common} id="cache-saved" title="Time saved" hint="PostgreSQL's time that hits saved, per second: 2 s are two server connections that were not busy." lines={lines.saved} format={duration} atLeast={1_000} />
      <Chart {...common} id="cache-bytes" title="Memory" hint="Kept answers with their keys, and the bound (query_cache_bytes)." lines={lines.bytes} format={bytes} atLeast={now.bytes_max} />
    </div>
  );
}

function lineSets(series: Series, bytesMax: number): Record<"hits" | "ratio" | "age" | "saved" | "bytes", Line[]> {
  const of = (name: string) => column(series, name);
  const [hits, misses, waited] = [of("cache_hits"), of("cache_misses"), of("cache_coalesced")];
  return {
    // Stacked: what is drawn last lies in front, and is the lowest.
    hits: [
      { label: "misses", colour: "idle", look: "area", values: sum(hits, misses), figures: misses },
      { label: "hits", colour: "active", look: "area", values: hits },
      { label: "of clients that waited", colour: "waiting", look: "area", values: waited },
    ],
    ratio: [{ label: "hit ratio", colour: "active", values: ratios(hits, misses) }],
    age: [{ label: "mean age", colour: "pinned", values: quotient(of("cache_age_us"), of("cache_aged")) }],
    saved: [{ label: "saved", colour: "work", look: "area", values: of("cache_saved_us") }],
    bytes: [
      { label: "in use", colour: "active", look: "area", values: of("cache_bytes") },
      { label: "bound", colour: "ink-3", look: "dashed", values: series.time_s.map(() => bytesMax) },
    ],
  };
}
