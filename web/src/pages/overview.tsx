// The first screen: what is wrong, and what happens right now. It fits on two screens; the rest is on Details.

import type { ComponentChildren } from "preact";

import { get, type Database, type Overview, type Pool } from "../api";
import { count, duration, percent, rate } from "../format";
import { type Live, useLive, useSeries } from "../live";
import { href } from "../route";
import { sentence } from "../sentence";
import { Actions } from "../parts/actions";
import { OverTime } from "../parts/charts";
import { Pools, usePools } from "../parts/pools";
import { Placeholder } from "../parts/small";
import { Verdict } from "../parts/verdict";
import { Key, Weir } from "../parts/weir";

/** Names of unused databases that are listed. */
const MOST_UNUSED = 30;
/** Pools that are shown unless all are asked for. */
const FIRST_POOLS = 8;

interface Props {
  live: Live<Overview>;
  windowS: number;
  pick: (seconds: number) => void;
}

export function OverviewPage({ live, windowS, pick }: Props) {
  const series = useSeries(windowS);
  const pools = usePools();
  const databases = useLive("databases", 5_000, () => get<{ databases: Database[] }>("databases"));
  const now = live.value;
  if (!now) return <Placeholder fault={live.fault}>Loading …</Placeholder>;
  const end = series.value?.time_s.at(-1) ?? now.time_s;
  return (
    <>
      <section class="hero" aria-labelledby="now">
        <h2 id="now" class="sentence">{sentence(now)}</h2>
        {now.clients.total === 0 && <Listens to={now.process.listen ?? []} />}
        {pools.value && databases.value && <Verdict now={now} pools={pools.value.pools} databases={databases.value.databases} />}
        <Vitals now={now} />
        <Weir clients={now.clients} servers={now.servers} />
        <Key clients={now.clients} servers={now.servers} />
        <Actions paused={now.process.state === "paused"} again={live.again} />
      </section>
      <section aria-labelledby="pools">
        <h2 id="pools">Pools</h2>
        <p class="hint">One for each database and user: its clients share its server connections.</p>
        {pools.value ? <Pools pools={pools.value.pools} first={FIRST_POOLS} /> : <Placeholder fault={pools.fault}>Loading …</Placeholder>}
        {pools.value && databases.value && <Unused pools={pools.value.pools} databases={databases.value.databases} />}
      </section>
      <div class="brief"><OverTime series={series} windowS={windowS} pick={pick} end={end} charts={["split", "latency"]}>The first second is being measured …</OverTime></div>
      <p class="links">
        <a href={href("details")}>Details</a>: all charts, percentiles, errors by kind, and this process.
      </p>
    </>
  );
}

function Listens({ to }: { to: string[] }) {
  return to.length > 0 ? <p class="lead">pgweir listens on {to.join(", ")}.</p> : null;
}

/** A database without clients has no pool; its page has its actions. */
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

/** The figures of the last seconds that a reader looks for first. */
function Vitals({ now }: { now: Overview }) {
  const { total, wait, server } = now.latency;
  return (
    <dl class="vitals">
      <Vital term="transactions per second">{rate(now.rates.transactions)}</Vital>
      <Vital term="half of all statements take less than">{time(total?.p50_us)}</Vital>
      <Vital term="99 of 100 take less than">{time(total?.p99_us)}</Vital>
      <Vital term="of the statements' time is waiting for a connection" hint="on average">{share(wait?.mean_us, total?.mean_us)}</Vital>
      <Vital term="of the statements' time PostgreSQL works" hint="on average">{share(server?.mean_us, total?.mean_us)}</Vital>
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

