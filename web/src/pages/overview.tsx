// The first screen: what happens right now, for somebody who has never seen a pooler.

import type { ComponentChildren } from "preact";

import { get, type Database, type Overview, type Pool } from "../api";
import { bytes, count, duration, percent, rate, span } from "../format";
import { type Live, useLive, useSeries } from "../live";
import { href } from "../route";
import { sentences } from "../sentence";
import { Actions } from "../parts/actions";
import { OverTime } from "../parts/charts";
import { LatencyParts } from "../parts/latency";
import { Pools, usePools } from "../parts/pools";
import { Placeholder } from "../parts/small";
import { Key, Weir } from "../parts/weir";

/** Names of unused databases that are listed. */
const MOST_UNUSED = 30;

interface Props {
  live: Live<Overview>;
  windowS: number;
  pick: (seconds: number) => void;
}

export function OverviewPage({ live, windowS, pick }: Props) {
  const series = useSeries(windowS);
  const pools = usePools();
  const databases = useLive("databases", 10_000, () => get<{ databases: Database[] }>("databases"));
  const now = live.value;
  if (!now) return <Placeholder fault={live.fault}>Asking for the first figures …</Placeholder>;
  const end = series.value?.time_s.at(-1) ?? now.time_s;
  return (
    <>
      <section class="hero" aria-labelledby="now">
        <h2 id="now" class="unseen">Right now</h2>
        <Sentences now={now} />
        <p class="lead">
          A client gets a server connection when it asks for something, and gives it back at the end of its {now.process.pool_mode}.
          So a few connections are enough for many clients.
        </p>
        <Weir clients={now.clients} servers={now.servers} />
        <Key clients={now.clients} servers={now.servers} />
        <Vitals now={now} />
        <Actions paused={now.process.state === "paused"} again={live.again} />
      </section>
      <OverTime series={series} windowS={windowS} pick={pick} end={end}>The first second is being measured …</OverTime>
      <section aria-labelledby="pools">
        <h2 id="pools">Pools</h2>
        <p class="hint">One for each database and user: its clients share its server connections.</p>
        {pools.value ? <Pools pools={pools.value.pools} /> : <Placeholder fault={pools.fault}>Asking …</Placeholder>}
        {pools.value && databases.value && <Unused pools={pools.value.pools} databases={databases.value.databases} />}
      </section>
      <LatencyParts now={now.latency} />
      <div class="pair">
        <Process now={now} />
        <Errors now={now} />
        {now.multiplexing && (
          <Figures
            id="multiplexing"
            title="Statement multiplexing"
            hint="Short statements of several clients share a server connection, one behind the other."
            figures={now.multiplexing}
            words={MULTIPLEXING}
          />
        )}
        {now.sessions && (
          <Figures
            id="sessions"
            title="Sessions"
            hint="What a client sets follows it to the next server connection; what can not move keeps it on its own."
            figures={now.sessions}
            words={SESSIONS}
          />
        )}
      </div>
    </>
  );
}

function Sentences({ now }: { now: Overview }) {
  const listen = now.process.listen ?? [];
  return (
    <p class="sentence">
      {sentences(now).map((said) => (
        <span key={said.text} class={said.tone}>{said.text} </span>
      ))}
      {now.clients.total === 0 && listen.length > 0 && <span class="quiet">It listens on {listen.join(", ")}.</span>}
    </p>
  );
}

/** Databases that nobody uses have no pools; their pages have the actions all the same. */
function Unused({ pools, databases }: { pools: Pool[]; databases: Database[] }) {
  const used = new Set(pools.map((pool) => pool.database));
  const unused = databases.filter((one) => !used.has(one.name));
  if (unused.length === 0) return null;
  return (
    <p class="hint links">
      Databases without a pool:{" "}
      {unused.slice(0, MOST_UNUSED).map((one, at) => (
        <span key={one.name}>
          {at > 0 && ", "}
          <a href={href("database", [one.name])}>{one.name}</a>
          {one.paused && " (paused)"}
          {one.disabled && " (disabled)"}
        </span>
      ))}
      {unused.length > MOST_UNUSED && ` and ${count(unused.length - MOST_UNUSED)} more`}.
    </p>
  );
}

/** The figures of the last seconds that one looks for first. */
function Vitals({ now }: { now: Overview }) {
  const { total, wait, server } = now.latency;
  return (
    <dl class="vitals">
      <Vital term="transactions per second">{rate(now.rates.transactions)}</Vital>
      <Vital term="half of all statements take less than">{time(total?.p50_us)}</Vital>
      <Vital term="99 of 100 take less than">{time(total?.p99_us)}</Vital>
      <Vital term="of the time goes into waiting for a connection" hint="on average">{share(wait?.mean_us, total?.mean_us)}</Vital>
      <Vital term="of the time PostgreSQL works" hint="on average">{share(server?.mean_us, total?.mean_us)}</Vital>
      <Vital term="errors per second" tone={now.rates.errors > 0 ? "bad" : ""}>{rate(now.rates.errors)}</Vital>
    </dl>
  );
}

function Vital({ term, hint, tone = "", children }: { term: string; hint?: string; tone?: string; children: ComponentChildren }) {
  return (
    <div title={hint}>
      <dt>{term}</dt>
      <dd class={tone}>{children}</dd>
    </div>
  );
}

function time(us: number | null | undefined): string {
  return us === null || us === undefined ? "–" : duration(us);
}

function share(part: number | null | undefined, whole: number | null | undefined): string {
  return part === null || part === undefined || !whole ? "–" : percent(Math.min(1, part / whole));
}

function Process({ now }: { now: Overview }) {
  const { process, workers, totals } = now;
  const busy = workers.map((worker) => percent(worker.busy)).join(", ");
  return (
    <section aria-labelledby="process">
      <h2 id="process">This process</h2>
      <dl class="facts">
        <Fact term="Version">{process.version}</Fact>
        <Fact term="Running for">{span(now.time_s - process.started_s)}</Fact>
        <Fact term={workers.length === 1 ? "Worker busy" : "Workers busy"}>{busy || "–"}</Fact>
        <Fact term="CPU cores in use">{process.cpu_share === null ? "–" : process.cpu_share.toFixed(2)}</Fact>
        <Fact term="Memory">{process.resident_bytes === null ? "–" : bytes(process.resident_bytes)}</Fact>
        <Fact term="Open files">{process.open_files === null ? "–" : `${count(process.open_files)} of ${process.open_files_max === null ? "?" : count(process.open_files_max)}`}</Fact>
        <Fact term="Clients at most">{count(process.max_client_conn)}</Fact>
        <Fact term="Transactions since the start">{count(totals.transactions)}</Fact>
        <Fact term="Logins per second">{rate(now.rates.logins)}</Fact>
      </dl>
    </section>
  );
}

function Fact({ term, children }: { term: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{term}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** What the pooler tells of it, in words; a figure that is not known here has the pooler's own name. */
function Figures({ id, title, hint, figures, words }: { id: string; title: string; hint: string; figures: Record<string, number>; words: Record<string, string> }) {
  const known = Object.keys(words).filter((name) => name in figures);
  const others = Object.keys(figures).filter((name) => !(name in words));
  return (
    <section aria-labelledby={id}>
      <h2 id={id}>{title}</h2>
      <p class="hint">{hint}</p>
      <dl class="facts">
        {[...known, ...others].map((name) => (
          <Fact key={name} term={words[name] ?? name.replaceAll("_", " ")}>{count(figures[name] ?? 0)}</Fact>
        ))}
      </dl>
    </section>
  );
}

const MULTIPLEXING = {
  ridden_total: "Statements that shared a connection",
  requeued_total: "Of these, run again elsewhere",
  violations_total: "Of these, not what they seemed",
  riding: "Clients with such a statement now",
  busy: "Connections busy with them now",
  target: "Connections meant for them",
};

const SESSIONS = {
  pinned: "Clients that keep their connection now",
  pins_total: "Times that one began to",
  replays_total: "Sessions brought to another connection",
  audits_total: "Connections asked what a client left there",
  remembered_total: "Changes known without asking",
};

function Errors({ now }: { now: Overview }) {
  return (
    <section aria-labelledby="errors-title">
      <h2 id="errors-title">Errors since the start</h2>
      {now.errors.length === 0 ? (
        <p class="none">None. Errors that clients are sent are counted here by their kind.</p>
      ) : (
        <dl class="facts">
          {now.errors.slice(0, 9).map((kind) => (
            <Fact key={kind.class} term={`${kind.name} (${kind.class})`}>{count(kind.total)}</Fact>
          ))}
        </dl>
      )}
    </section>
  );
}
