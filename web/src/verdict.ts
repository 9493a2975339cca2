// What is wrong, and what to do about it: one line for each finding. Green when there is none.

import type { ClusterSummary, Database, Overview, Pool } from "./api";
import { count, counted, duration, percent, rate, span } from "./format";
import { href, type Route } from "./route";

export interface Finding {
  /** "bad": clients fail or wait long. "attention": they soon may. */
  tone: "bad" | "attention";
  /** The database that it is about. */
  database: string | null;
  /** The cluster that it is about. */
  cluster?: string;
  /** The page that shows what the finding of the whole process is about. */
  page?: "clients" | "details";
  /** What was found. */
  text: string;
  /** What the reader can do. */
  remedy: string;
}

/** Queueing is a finding from this share of the time on ... */
const QUEUE_SHARE = 0.25;
/** ... if so many clients wait on average ... */
const QUEUE_CLIENTS = 1;
/** ... and the pool's servers are busy for this share of the time: else clients came in a burst, which more servers do not shorten much. */
const BUSY_SHARE = 0.6;
/** A client that waits this long is a finding whatever the average says. */
const QUEUE_OLDEST_US = 1_000_000;
/** Worse than that. */
const QUEUE_SHARE_BAD = 0.5;
const QUEUE_OLDEST_BAD_US = 10_000_000;
/** Of a pool's servers, by which one cause may hold them before that is a finding. */
const HELD_SHARE = 0.5;
const HELD_LEAST = 2;
/** Of a limit of the process. */
const NEARLY = 0.9;
const WORKER_BUSY = 0.95;
/** Errors are a finding from this rate on, if they are this share of all statements. */
const ERRORS_PER_S = 1;
const ERRORS_SHARE = 0.05;
/** Logins that are this many, and this share of all transactions, are an application that does not pool. */
const LOGINS_PER_S = 20;
const LOGINS_SHARE = 0.2;

/** The findings, the worst first. */
export function findings(now: Overview, pools: Pool[], databases: Database[]): Finding[] {
  const known = new Map(databases.map((one) => [one.name, one]));
  const several = namesWithSeveralPools(pools);
  const found = [
    ...ofState(now, pools),
    ...(now.clusters ?? []).flatMap(ofCluster),
    ...pools.filter((pool) => !isHeld(now, known.get(pool.database))).flatMap((pool) => ofPool(pool, known.get(pool.database), several.has(pool.database))),
    ...databases.filter((one) => one.disabled).map(disabled),
    ...ofProcess(now),
  ];
  return [...found.filter((one) => one.tone === "bad"), ...found.filter((one) => one.tone !== "bad")];
}

/** Where a reader sees more of a finding, and what the link is called; null if there is no more than the Overview shows. */
export function lookAt({ database, cluster, page }: Finding): { to: string; name: string } | null {
  if (database !== null) return { to: href("database", [database]), name: database };
  if (cluster !== undefined) return { to: href("clusters"), name: cluster };
  if (page === "clients") return { to: href("clients"), name: "Clients" };
  if (page === "details") return { to: href("details"), name: "Details" };
  return null;
}

/** The findings whose link leads to this page: they are told there, too. The page of one pool is a page of its database. */
export function foundOn({ page, parts }: Pick<Route, "page" | "parts">, all: Finding[]): Finding[] {
  const here = href(page, page === "database" ? parts.slice(0, 1) : []);
  return all.filter((one) => lookAt(one)?.to === here);
}

function namesWithSeveralPools(pools: Pool[]): Set<string> {
  const [once, several] = [new Set<string>(), new Set<string>()];
  for (const { database } of pools) (once.has(database) ? several : once).add(database);
  return several;
}

/** Pauses are meant, but clients wait. */
function ofState({ process, clients }: Overview, pools: Pool[]): Finding[] {
  const waiting = (number: number) => (number > 0 ? `, ${counted(number, "client")} waiting` : "");
  switch (process.state) {
    case "paused":
      return [{ tone: "bad", database: null, text: `All databases are paused${waiting(clients.waiting)}`, remedy: "RESUME" }];
    case "suspended":
      return [{ tone: "bad", database: null, text: "pgweir is suspended: it reads nothing from clients or servers", remedy: "RESUME" }];
    case "stopping":
      return [{ tone: "attention", database: null, text: "pgweir is shutting down: it takes no new clients", remedy: "nothing to do: it ends when its clients are done" }];
  }
  return process.paused_databases.map((database): Finding => {
    const its = pools.filter((pool) => pool.database === database).reduce((sum, pool) => sum + pool.clients.waiting, 0);
    return { tone: its > 0 ? "bad" : "attention", database, text: `${database} is paused${waiting(its)}`, remedy: `RESUME ${database}` };
  });
}

/** Clients of its databases wait for the cluster's primary: that is the finding. */
function isHeld({ clusters = [] }: Overview, database: Database | undefined): boolean {
  return clusters.some((one) => one.name === database?.cluster && one.primary === null);
}

function ofCluster({ name, primary, held_clients, nodes }: ClusterSummary): Finding[] {
  const found: Finding[] = [];
  const note = (tone: Finding["tone"], text: string, remedy: string) => found.push({ tone, database: null, cluster: name, text, remedy });
  if (primary === null) {
    const waiting = held_clients > 0 ? `, ${counted(held_clients, "client")} waiting` : "";
    note("bad", `cluster ${name} has no primary${waiting}`, "see what each node is, and why; pgweir promotes none");
  }
  for (const node of nodes) {
    if (node.state === "down" || node.state === "refused") note("attention", `node ${node.name} of cluster ${name} is ${node.state}`, "see its last error");
    else if (node.switch !== "attached") note("attention", `node ${node.name} of cluster ${name} is ${node.switch}`, `ATTACH NODE ${name}.${node.name}`);
  }
  return found;
}

/** At most one finding for each pool: the cause, not what follows from it. */
function ofPool(pool: Pool, entry: Database | undefined, hasUsers: boolean): Finding[] {
  const name = hasUsers && pool.user !== null ? `${pool.database} (user ${pool.user})` : pool.database;
  if (pool.connect_failing) return [unreachable(pool, name)];
  if (pool.paused) return [];
  const one = queueing(pool, entry, name) ?? held(pool, name) ?? failing(pool, name);
  return one ? [one] : [];
}

/** "database old: cannot connect: connection refused, next attempt in 4 s" */
function unreachable(pool: Pool, name: string): Finding {
  const why = pool.last_connect_error === null ? "" : `: ${connectError(pool.last_connect_error)}`;
  const waiting = pool.clients.waiting > 0 ? `, ${counted(pool.clients.waiting, "client")} waiting` : "";
  const remedy = pool.last_connect_error === null ? "sign in to see the reason" : "check host, port and password of the database, and that PostgreSQL runs";
  return { tone: "bad", database: pool.database, text: `database ${name}: cannot connect${why}, ${nextAttempt(pool)}${waiting}`, remedy };
}

export function nextAttempt({ next_connect_us }: Pool): string {
  if (next_connect_us === null || next_connect_us === 0) return "next attempt when a client needs a server";
  return `next attempt in ${span(Math.ceil(next_connect_us / 1e6))}`;
}

/** The reason of a failed connection, without words that are said beside it: "Connection refused (10.0.0.5:5432)". */
export function connectError(text: string): string {
  return text.replace(/^(connection to server failed|connect failed): /, "").replace(/^connect to (\S+) failed: (.*)$/, "$2 ($1)");
}

function queueing(pool: Pool, entry: Database | undefined, name: string): Finding | null {
  const { clients, servers, lately, wait_oldest_us } = pool;
  // Of the time that transactions take, clients with an open one that is idle included: the share of clients that wait among those that wait or are served.
  const share = lately.clients_waiting / Math.max(lately.clients_waiting + lately.clients_active, 1e-9);
  // While the pool may still grow, a short wait is for a connection that is being opened.
  const isFull = servers.limit > 0 && servers.total >= servers.limit;
  const isBusy = isFull && lately.servers_active >= BUSY_SHARE * servers.limit;
  const isSlow = isBusy && share >= QUEUE_SHARE && lately.clients_waiting >= QUEUE_CLIENTS;
  if (!isSlow && (clients.waiting === 0 || wait_oldest_us < QUEUE_OLDEST_US)) return null;
  const tone = (isSlow && share >= QUEUE_SHARE_BAD) || wait_oldest_us >= QUEUE_OLDEST_BAD_US ? "bad" : "attention";
  // Numbers of this very moment would contradict the share, which is of ten seconds.
  const busy = isSlow ? lately.servers_active : servers.active;
  const waiting = isSlow ? lately.clients_waiting : clients.waiting;
  const of = servers.limit > 0 ? `${count(busy)} of ${count(servers.limit)} servers busy` : `${counted(busy, "server")} busy`;
  const cost = isSlow ? `${percent(share)} of the time is queueing` : `the longest for ${duration(wait_oldest_us)}`;
  return { tone, database: pool.database, text: `${name}: ${of}, ${counted(waiting, "client")} waiting, ${cost}`, remedy: moreRoom(pool, entry) };
}

/** What lets more statements run at once. */
function moreRoom({ clients, servers, mode }: Pool, entry: Database | undefined): string {
  const idle = clients.idle_in_transaction > 0 ? ` (${count(clients.idle_in_transaction)} idle in transaction)` : "";
  const isFull = servers.limit > 0 && servers.total >= servers.limit;
  if (entry && entry.max_connections > 0 && entry.current_connections >= entry.max_connections) return `raise max_db_connections or shorten transactions${idle}`;
  if (mode === "session") return "use pool_mode = transaction, or raise pool_size";
  if (isFull && (clients.pinned ?? 0) >= HELD_SHARE * servers.limit) return `raise pool_size; ${counted(clients.pinned ?? 0, "client keeps its server", "clients keep their servers")}, and Clients says why`;
  if (!isFull && servers.limit > 0) return "see the log and max_user_connections: the pool may have more servers, and does not get them";
  return `raise pool_size or shorten transactions${idle}`;
}

/** Nothing waits yet, but most of the pool is held by clients that do nothing. */
function held(pool: Pool, name: string): Finding | null {
  const { clients, servers, mode, database } = pool;
  if (mode === "session" || servers.limit === 0) return null;
  const least = Math.max(HELD_LEAST, HELD_SHARE * servers.limit);
  if (clients.idle_in_transaction >= least) {
    return { tone: "attention", database, text: `${name}: ${count(clients.idle_in_transaction)} of ${count(servers.limit)} servers are idle in transaction`, remedy: "end transactions sooner, or set idle_transaction_timeout" };
  }
  const pinned = clients.pinned ?? 0;
  if (pinned >= least) {
    return { tone: "attention", database, text: `${name}: ${count(pinned)} of ${count(servers.limit)} servers are kept by their clients`, remedy: "see the reason on Clients; raise pool_size or set max_pinned" };
  }
  return null;
}

function failing({ rates, database }: Pool, name: string): Finding | null {
  if (rates.errors < ERRORS_PER_S || rates.errors < ERRORS_SHARE * rates.queries) return null;
  return { tone: "attention", database, text: `${name}: ${rate(rates.errors)} errors per second`, remedy: "see Details for their kinds, Statements for the statements that fail" };
}

function disabled(entry: Database): Finding {
  return { tone: "attention", database: entry.name, text: `${entry.name} is disabled: new clients are refused`, remedy: `ENABLE ${entry.name}` };
}

function ofProcess({ process, clients, rates, workers }: Overview): Finding[] {
  const found: Finding[] = [];
  const note = (page: "clients" | "details", text: string, remedy: string, tone: Finding["tone"] = "attention") => found.push({ tone, database: null, page, text, remedy });
  if (process.max_client_conn > 0 && clients.total >= NEARLY * process.max_client_conn) {
    const full = clients.total >= process.max_client_conn;
    note("clients", `${count(clients.total)} of ${counted(process.max_client_conn, "client")}${full ? ": new clients are refused" : ""}`, "raise max_client_conn", full ? "bad" : "attention");
  }
  if (process.open_files !== null && process.open_files_max !== null && process.open_files >= NEARLY * process.open_files_max) {
    note("details", `${count(process.open_files)} of ${count(process.open_files_max)} files are open`, "raise the limit of open files (ulimit -n, LimitNOFILE)", "bad");
  }
  const busiest = Math.max(0, ...workers.map((worker) => worker.busy));
  if (busiest >= WORKER_BUSY) note("details", `a worker is busy ${percent(busiest)} of the time`, "raise workers, if the machine has free cores");
  if (rates.logins >= LOGINS_PER_S && rates.logins >= LOGINS_SHARE * rates.transactions) {
    note("clients", `${rate(rates.logins)} logins per second for ${rate(rates.transactions)} transactions`, "let the application keep its connections: to pgweir an idle client costs next to nothing");
  }
  return found;
}
