// One database, or one of its pools.

import { get, type Database, type Overview, type Pool } from "../api";
import { useServices } from "../context";
import { count, counted } from "../format";
import { href } from "../route";
import { type Live, useLive, useSeries } from "../live";
import { Actions } from "../parts/actions";
import { OverTime } from "../parts/charts";
import { LatencyParts } from "../parts/latency";
import { Pools, usePools } from "../parts/pools";
import { Badge, Placeholder } from "../parts/small";
import { Found } from "../parts/verdict";
import { Key } from "../parts/weir";
import { sumClients, sumServers } from "../sums";
import { connectError, findings, nextAttempt } from "../verdict";

interface Props {
  live: Live<Overview>;
  database: string;
  user: string | undefined;
  windowS: number;
  pick: (seconds: number) => void;
}

export function DatabasePage({ live, database, user, windowS, pick }: Props) {
  const series = useSeries(windowS, database, user);
  const all = usePools();
  const pools = all.value?.pools.filter((pool) => pool.database === database && (user === undefined || pool.user === user)) ?? [];
  const databases = useLive("databases", 2_000, () => get<{ databases: Database[] }>("databases"));
  const entry = databases.value?.databases.find((one) => one.name === database);
  const paused = entry?.paused ?? pools.some((pool) => pool.paused);
  const disabled = entry?.disabled ?? false;
  const again = () => {
    all.again();
    databases.again();
  };
  const failing = pools.find((pool) => pool.connect_failing);
  // Without a server there is nothing to draw: the reason says more.
  const works = !failing || pools.some((pool) => pool.servers.active + pool.servers.idle + pool.servers.used > 0);
  if (databases.value && !entry && all.value && pools.length === 0) {
    return <Placeholder>There is no database called {database} in the configuration.</Placeholder>;
  }
  const now = live.value;
  const end = series.value?.time_s.at(-1) ?? all.value?.time_s ?? 0;
  return (
    <>
      <section aria-labelledby="name">
        <p class="crumbs">
          <a href={href("overview")}>Overview</a>
          {user !== undefined && <> / <a href={href("database", [database])}>{database}</a></>}
        </p>
        <div class="section-head">
          <h2 id="name">
            {user === undefined ? database : `${user} on ${database}`} {paused && <Badge tone="attention">paused</Badge>} {disabled && <Badge tone="attention">disabled</Badge>}
          </h2>
          {user === undefined && <Actions database={database} paused={paused} disabled={disabled} again={again} />}
        </div>
        {entry && user === undefined && <Limits entry={entry} />}
        {now && !failing && <Found on={{ page: "database", parts: [database] }} all={findings(now, pools, entry ? [entry] : [])} />}
        {failing && <Failure pool={failing} entry={entry} pools={pools} />}
        {pools.length > 0 && <Key clients={sumClients(pools.map((pool) => pool.clients))} servers={sumServers(pools.map((pool) => pool.servers))} />}
        {all.value ? <Pools pools={pools} inDatabase /> : <Placeholder fault={all.fault}>Loading …</Placeholder>}
        <p class="links">
          <a href={href("clients", [], { database, user })}>Its clients</a> · <a href={href("servers", [], { database, user })}>its server connections</a> ·{" "}
          <a href={href("statements", [], { database })}>its statements</a>
        </p>
      </section>
      {works && <OverTime series={series} windowS={windowS} pick={pick} end={end}>Nothing has been measured yet.</OverTime>}
      {works && (user !== undefined || pools.length === 1) && <LatencyParts now={pools[0]?.latency} database={database} {...(user !== undefined && { user })} />}
    </>
  );
}

/** A server that cannot be reached: why, what happens to the clients, what to look at. */
function Failure({ pool, entry, pools }: { pool: Pool; entry: Database | undefined; pools: Pool[] }) {
  const { session, signIn } = useServices();
  const waiting = pools.reduce((sum, one) => sum + one.clients.waiting, 0);
  const error = pool.last_connect_error;
  return (
    <div class="notice bad failure">
      <h3>pgweir cannot connect to the server</h3>
      {error !== null && <p class="error-text">{connectError(error)}</p>}
      {error === null && <p>The reason is shown to those who sign in. {session.sign_in && session.role === "anonymous" && <button type="button" onClick={signIn}>Sign in</button>}</p>}
      <p>
        {capital(nextAttempt(pool))} (server_login_retry).{" "}
        {waiting > 0 ? `${counted(waiting, "client")} ${waiting === 1 ? "waits" : "wait"} meanwhile. ` : "No client waits. "}
        pgweir sends new clients this error at once.
      </p>
      <ul>
        {entry?.host != null && <li>Does PostgreSQL run at {entry.host}:{entry.port}, and does a firewall let pgweir through?</li>}
        <li>If PostgreSQL refused the login: do user, password and pg_hba.conf fit?</li>
        <li>If this is a maintenance: PAUSE keeps clients waiting in place of errors.</li>
      </ul>
    </div>
  );
}

function capital(text: string): string {
  return text.charAt(0).toUpperCase() + text.slice(1);
}

/** Where the database lies, and what it may use; 0 is no limit. */
function Limits({ entry }: { entry: Database }) {
  const clients = entry.max_client_connections > 0 ? `, at most ${count(entry.max_client_connections)} clients` : "";
  const all = entry.max_connections > 0 ? `, at most ${count(entry.max_connections)} in all` : "";
  const spare = entry.reserve_pool_size > 0 ? ` and ${count(entry.reserve_pool_size)} in reserve` : "";
  return (
    <p class="hint">
      {entry.host !== null && `${entry.database ?? entry.name} at ${entry.host}:${entry.port}. `}
      {`${count(entry.pool_size)} server connections for each user${entry.cluster ? " and node" : ""}${spare}${all}${clients}.`}
    </p>
  );
}
