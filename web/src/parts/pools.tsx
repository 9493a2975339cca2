// The pools: a table where there is room, a list where there is not.

import { useMemo, useState } from "preact/hooks";

import { get, type Pool } from "../api";
import { count, duration, rate } from "../format";
import { useLive, type Live } from "../live";
import { href } from "../route";
import { Badge, ClientBar, ServerBar } from "./small";
import { Table, type ColumnOf } from "./table";

/** With more pools than this they are asked for less often: each answer has all of them. */
const MANY = 100;
/** Rows that are shown unless all are asked for. */
const FIRST = 50;

/** The pools, kept up to date. */
export function usePools(): Live<{ time_s: number; pools: Pool[] }> {
  return useLive<{ time_s: number; pools: Pool[] }>("pools", (all) => ((all?.pools.length ?? 0) > MANY ? 5_000 : 1_000), () => get("pools"));
}

export function Pools({ pools, inDatabase = false, first = FIRST }: { pools: Pool[]; inDatabase?: boolean; first?: number }) {
  const [all, setAll] = useState(false);
  const busiest = useMemo(() => [...pools].sort((a, b) => rank(b) - rank(a)), [pools]);
  const shown = all ? busiest : busiest.slice(0, first);
  const most = Math.max(1, ...pools.map((pool) => pool.clients.total));
  const none = "No pool yet. The first client of a database and user makes one.";
  return (
    <>
      <Table label="Pools" columns={columns(most, inDatabase)} rows={shown} keyOf={key} none={none} sort="tx/s" />
      {shown.length < pools.length && (
        <p class="more">
          <button type="button" onClick={() => setAll(true)}>Show all {count(pools.length)}</button> <span class="hint">The busiest {first} are shown, those with waiting clients first.</span>
        </p>
      )}
    </>
  );
}

/** By what pools are chosen when there are many: those that cannot connect, those with waiting clients, then those that do most. */
function rank(pool: Pool): number {
  return (pool.connect_failing ? 1e15 : 0) + pool.clients.waiting * 1e9 + pool.rates.transactions * 1e3 + pool.clients.total;
}

function key(pool: Pool): string {
  return JSON.stringify([pool.database, pool.user]);
}

function columns(most: number, inDatabase: boolean): ColumnOf<Pool>[] {
  const database: ColumnOf<Pool> = { title: "Database", plain: true, by: (pool) => pool.database, cell: (pool) => <Name pool={pool} /> };
  const user: ColumnOf<Pool> = { title: "User", head: true, by: (pool) => pool.user ?? "", cell: (pool) => <User pool={pool} linked={inDatabase} /> };
  return [
    ...(inDatabase ? [user] : [database, user]),
    { title: "Clients", num: true, hint: "working, pinned, waiting, idle", by: (pool) => pool.clients.total, cell: (pool) => <ClientBar clients={pool.clients} most={most} /> },
    { title: "Connections", num: true, hint: "server connections open, of those allowed", by: (pool) => pool.servers.total, cell: (pool) => <ServerBar servers={pool.servers} /> },
    { title: "tx/s", num: true, hint: "transactions per second", by: (pool) => pool.rates.transactions, cell: (pool) => rate(pool.rates.transactions) },
    { title: "p50", num: true, hint: "half of the statements are faster", by: (pool) => pool.latency.total?.p50_us ?? 0, cell: (pool) => time(pool.latency.total?.p50_us) },
    { title: "p99", num: true, hint: "all but one in a hundred are faster", by: (pool) => pool.latency.total?.p99_us ?? 0, cell: (pool) => time(pool.latency.total?.p99_us) },
    { title: "Waiting", num: true, hint: "clients in the queue, and how long the first has waited", by: (pool) => pool.wait_oldest_us, cell: (pool) => <Queue pool={pool} /> },
    { title: "Errors/s", num: true, by: (pool) => pool.rates.errors, cell: (pool) => <span class={pool.rates.errors > 0 ? "bad" : "quiet"}>{rate(pool.rates.errors)}</span> },
  ];
}

function time(us: number | null | undefined) {
  return us === null || us === undefined ? <span class="quiet">–</span> : duration(us);
}

function Name({ pool }: { pool: Pool }) {
  return (
    <>
      <a href={href("database", [pool.database])}>{pool.database}</a>
      <States pool={pool} />
    </>
  );
}

function User({ pool, linked }: { pool: Pool; linked: boolean }) {
  if (pool.user === null) return <span class="quiet">all</span>;
  return (
    <>
      {linked ? <a href={href("database", [pool.database, pool.user])}>{pool.user}</a> : pool.user}
      {linked && <States pool={pool} />}
    </>
  );
}

function States({ pool }: { pool: Pool }) {
  return (
    <>
      {pool.paused && <Badge tone="attention">paused</Badge>}
      {pool.connect_failing && <span title={pool.last_connect_error ?? undefined}><Badge tone="bad">cannot connect</Badge></span>}
      {pool.mode !== "transaction" && <Badge tone="quiet">{pool.mode}</Badge>}
    </>
  );
}

function Queue({ pool }: { pool: Pool }) {
  if (pool.clients.waiting === 0) return <span class="quiet">0</span>;
  return <span class="attention">{pool.clients.waiting}, {duration(pool.wait_oldest_us)}</span>;
}
