// The API of docs/openapi.yaml as the page uses it: types, requests, and faults in words.

export interface Session {
  role: "anonymous" | "stats" | "admin";
  user: string | null;
  csrf: string | null;
  sees_names: boolean;
  may_act: boolean;
  anonymous: "none" | "numbers" | "all";
  sign_in: boolean;
}

export interface Quantiles {
  mean_us: number;
  p50_us: number;
  p90_us: number;
  p95_us: number;
  p99_us: number;
  p999_us: number;
  max_us: number;
}

export interface Latency {
  count: number;
  total: Quantiles | null;
  wait: Quantiles | null;
  server: Quantiles | null;
  client: Quantiles | null;
  transaction: Quantiles | null;
}

/** `multiplexed` ones are among the `waiting`; `pinned` and `idle_in_transaction` ones among the `active`. */
export interface ClientCounts {
  total: number;
  active: number;
  multiplexed: number;
  waiting: number;
  idle: number;
  pinned: number | null;
  idle_in_transaction: number;
  login: number;
}

export interface ServerCounts {
  total: number;
  active: number;
  idle: number;
  used: number;
  tested: number;
  login: number;
  being_canceled: number;
  /** 0 is no limit. */
  limit: number;
}

export interface Rates {
  transactions: number;
  queries: number;
  received_bytes: number;
  sent_bytes: number;
  errors: number;
  logins: number;
}

export interface DatabaseSummary {
  name: string;
  paused: boolean;
  disabled: boolean;
  clients: ClientCounts;
  servers: ServerCounts;
  rates: Rates;
  p50_us: number | null;
  p99_us: number | null;
  wait_oldest_us: number;
}

export interface Overview {
  time_s: number;
  process: {
    version: string;
    /** Not there for readers who may not see names. */
    machine?: string | null;
    started_s: number;
    state: "active" | "paused" | "suspended" | "stopping";
    paused_databases: string[];
    pool_mode: string;
    max_client_conn: number;
    listen?: string[] | null;
    open_files: number | null;
    open_files_max: number | null;
    resident_bytes: number | null;
    cpu_share: number | null;
  };
  clients: ClientCounts;
  servers: ServerCounts;
  rates: Rates;
  totals: Rates;
  latency: Latency;
  queue: { waiting: number; wait_oldest_us: number };
  workers: { busy: number; connections: number }[];
  databases: DatabaseSummary[];
  /** Not there in versions that know no clusters. */
  clusters?: ClusterSummary[];
  errors: { class: string; name: string; total: number }[];
  multiplexing: Record<string, number> | null;
  sessions: Record<string, number> | null;
}

export type NodeState = "unknown" | "standby" | "primary" | "unsure" | "starting" | "down" | "refused";
export type NodeSwitch = "attached" | "draining" | "detached";

/** `primary` is null while clients are held. */
export interface ClusterSummary {
  name: string;
  primary: string | null;
  held_clients: number;
  nodes: { name: string; state: NodeState; switch: NodeSwitch }[];
}

/** A version may lack the fields that are optional here. */
export interface Cluster {
  name: string;
  state: "available" | "held";
  primary: string | null;
  epoch: number;
  timeline: number | null;
  held_clients: number;
  held_since_s: number | null;
  /** Why there is no primary; null also for readers that see no names. */
  reason: string | null;
  /** The progress of a SWITCHOVER; null if none is under way. */
  switchover?: string | null;
  /** Why the last one failed; null if it did not. */
  switchover_error?: string | null;
  /** Reads that a standby should have had and the primary got, since the start. */
  fell_back_no_standby?: number | null;
  fell_back_lag?: number | null;
  /** Clients at COMMIT whose primary was lost: those that wait for the outcome, and what the others were told since the start. */
  resolving?: number | null;
  outcomes_committed?: number | null;
  outcomes_rolled_back?: number | null;
  outcomes_unknown?: number | null;
  discovery?: string | null;
  source?: string | null;
  source_age_ms?: number | null;
  source_error?: string | null;
  databases: string[];
  nodes: ClusterNode[];
}

export interface ClusterNode {
  name: string;
  /** Null for readers that see no names. */
  host: string | null;
  port: number;
  zone?: string | null;
  /** What it said last. */
  role: "primary" | "standby" | null;
  state: NodeState;
  state_since_s: number | null;
  switch: NodeSwitch;
  timeline: number | null;
  position: string | null;
  lag_bytes: number | null;
  lag_ms?: number | null;
  weight?: number | null;
  /** Its part of the reads, beside that of other standbys; 0 while it is too far behind. */
  share?: number | null;
  /** Reads that it was sent since the start. */
  reads?: number | null;
  sv_active?: number | null;
  sv_idle?: number | null;
  cl_waiting?: number | null;
  last_check_s: number | null;
  last_error: string | null;
}

export type ClusterChange = { time_s: number; cluster: string } & (
  | { kind: "state"; node: string; from: NodeState | null; to: NodeState | null; error: string | null }
  | { kind: "switch"; node: string; to: NodeSwitch }
  | { kind: "primary"; node: string; epoch: number }
  | { kind: "held" }
);

export interface Clusters {
  time_s: number;
  clusters: Cluster[];
  /** The newest first. */
  changes: ClusterChange[];
}

export interface Pool {
  database: string;
  user: string | null;
  mode: "session" | "transaction" | "statement";
  paused: boolean;
  clients: ClientCounts;
  servers: ServerCounts;
  rates: Rates;
  totals: Rates;
  latency: Latency;
  wait_oldest_us: number;
  /** Averages over about the last ten seconds. */
  lately: { clients_active: number; clients_waiting: number; servers_active: number };
  /** The last connection to the server failed, and none has succeeded since. */
  connect_failing: boolean;
  /** Until the next attempt; null unless `connect_failing`. */
  next_connect_us: number | null;
  /** Null also for readers that see no names. */
  last_connect_error: string | null;
}

export interface Database {
  name: string;
  host: string | null;
  port: number;
  database: string | null;
  force_user: string | null;
  pool_size: number;
  min_pool_size: number;
  reserve_pool_size: number;
  pool_mode: string | null;
  max_connections: number;
  current_connections: number;
  max_client_connections: number;
  current_client_connections: number;
  paused: boolean;
  disabled: boolean;
  /** The cluster that serves it. */
  cluster?: string | null;
}

/** Both null in the row of the whole process. */
export interface PercentileRow {
  database: string | null;
  user: string | null;
  latency: Latency;
}

/** What rows can be chosen by, whatever was chosen. */
export interface Choices {
  database?: string[];
  user?: string[];
  application_name?: string[];
}

export interface Client {
  id: number;
  database: string | null;
  user: string | null;
  application_name: string | null;
  address: string | null;
  state: "active" | "idle_in_transaction" | "waiting" | "idle" | "login" | "cancel";
  reason: string | null;
  since_s: number;
  request_s: number | null;
  wait_us: number;
  /** The age of its transaction; 0 if none is open. */
  transaction_us: number;
  /** The fingerprint of the statement that its server runs. */
  statement: string | null;
  server_id: number | null;
  prepared_statements: number;
  tls: string | null;
  replication: string | null;
}

/** The clients with one application_name; the name is empty for those that gave none. */
export interface Application {
  name: string;
  clients: number;
  active: number;
  idle_in_transaction: number;
  /** Among the others. */
  pinned: number;
  waiting: number;
  idle: number;
  wait_oldest_us: number;
  transaction_oldest_us: number;
  databases: string[];
  users: string[];
}

export interface Server {
  id: number;
  database: string;
  user: string | null;
  address: string | null;
  state: "active" | "idle_in_transaction" | "idle" | "used" | "tested" | "login" | "being_canceled" | "listening";
  reason: string | null;
  since_s: number;
  request_s: number | null;
  active_us: number;
  transaction_us: number;
  statement: string | null;
  client_id: number | null;
  application_name: string | null;
  backend_pid: number;
  close_needed: boolean;
  prepared_statements: number;
  tls: string | null;
}

export interface Statement {
  fingerprint: string;
  text: string;
  database: string;
  user: string | null;
  calls: number;
  errors: number;
  total_us: number;
  wait_us: number;
  server_us: number;
  client_us: number;
  mean_us: number;
  p50_us: number;
  p95_us: number;
  p99_us: number;
  max_us: number;
  rows: number;
  bytes: number;
  /** Whether the query cache keeps its answers: `yes`, or why not. A version may lack this and the next two. */
  cache?: string;
  cache_hits?: number;
  cache_saved_us?: number;
}

/** A pool, or for readers that see no names all pools of a database. */
export interface CachePool {
  database: string;
  user: string | null;
  /** `on`, or why no answer is kept; several only of several pools. */
  states: string[];
  answers: number;
  bytes: number;
  hits: number;
  /** Of the hits, those of clients that waited. */
  coalesced: number;
  misses: number;
  /** Of the misses, those for which there was an answer that could not be given, by reason. */
  expired: number;
  own_changes: number;
  redefined: number;
  fills: number;
  too_long: number;
  unfit: number;
  evicted: number;
  purged: number;
  saved_us: number;
  /** With `follow=wal`: of the misses, those whose kept answer was dropped because a table had changed; of these, those by key. */
  dropped_by_write: number;
  dropped_by_key: number;
  /** With `follow=wal`: of the misses, those whose client was not told in time that no table had changed. */
  not_fresh: number;
  /** With `follow=wal`: answers that were not kept because a table was changed while the statement ran. */
  refused_unsettled: number;
  /** Kept answers that were compared with a server's; of these, those that were wrong. */
  verified: number;
  wrong: number;
  age_p50_ms: number | null;
  age_max_ms: number | null;
}

/** Null, and no table: any. */
export interface CacheRule {
  name: string;
  database: string | null;
  user: string | null;
  application_name: string | null;
  tables: string[];
  follow: "time" | "wal";
  ttl_ms: number | null;
}

/** A database that a rule with `follow=wal` names. */
export interface FollowedDatabase {
  database: string;
  /** `following`, `opening` or `off`. */
  state: string;
  /** Why changes are not followed; null also for readers that see no names. */
  reason: string | null;
  since_s: number | null;
  /** Null while no changes are read, as the next one. */
  tables: number | null;
  lag_bytes: number | null;
}

export interface Cache {
  time_s: number;
  query_cache: "off" | "on" | "hinted" | "coalesce";
  bytes_max: number;
  answer_bytes_max: number;
  /** One of this number of hits is compared with a server's answer; 0: none. */
  query_cache_verify: number;
  rules_total: number;
  /** Empty for readers that see no names. */
  rules: CacheRule[];
  followed: FollowedDatabase[];
  pools: CachePool[];
}

export interface SlowStatement {
  time_s: number;
  database: string;
  user: string;
  application_name: string;
  text: string | null;
  total_us: number;
  wait_us: number;
  server_us: number;
  client_us: number;
  rows: number;
  bytes: number;
  failed: boolean;
}

export interface Statements {
  time_s: number;
  enabled: boolean;
  tracked: number;
  forgotten: number;
  statements: Statement[];
  slow_ms: number | null;
  slow: SlowStatement[];
}

export interface Setting {
  name: string;
  group: string;
  value: string | null;
  default: string | null;
  takes: string;
  change: "reload" | "restart";
  origin: "pgbouncer" | "pgweir";
  in_effect: boolean;
  documentation: string;
  changed: boolean;
}

export interface LogLine {
  /** In the order of the log; a pgweir that was started again begins at 1. */
  id: number;
  time_s: number;
  level: "log" | "warning" | "error" | "fatal";
  message: string;
}

export type Column = (number | null)[];

export interface Series {
  step_s: number;
  time_s: number[];
  columns: Record<string, Column>;
}

export type Action = "pause" | "resume" | "reconnect" | "disable" | "enable" | "kill" | "kill_client" | "reload" | NodeAction | "recheck" | "switchover" | "cancel_switchover";
export type NodeAction = "attach" | "drain" | "detach";

/** What a request ended with, other than an answer. */
export class Fault extends Error {
  constructor(
    /** HTTP's status; 0 when the server was not reached. */
    readonly status: number,
    message: string,
  ) {
    super(message);
  }
}

const ROOT = "./api/v1/";
/** A pooler that does not answer within this is treated as not reachable. */
const TIMEOUT_MS = 8_000;

/** Reads `path`, e.g. `get<Overview>("overview")`. */
export async function get<T>(path: string, query: Record<string, string | number | null | undefined> = {}): Promise<T> {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== null && value !== undefined && value !== "") words.set(name, String(value));
  }
  const tail = words.size > 0 ? `?${words}` : "";
  return request<T>("GET", path + tail);
}

/** The console's commands; admins only. `done` is false when it goes on by itself. */
export function act(action: Action, body: { database?: string; client?: number; cluster?: string; node?: string; force?: boolean }, csrf: string | null): Promise<{ done: boolean; message?: string }> {
  return request("POST", `actions/${action}`, body, csrf);
}

export function signIn(user: string, password: string): Promise<Session> {
  return request("POST", "session", { user, password });
}

export function signOut(csrf: string | null): Promise<Session> {
  return request("DELETE", "session", {}, csrf);
}

async function request<T>(method: string, path: string, body?: object, csrf?: string | null): Promise<T> {
  const headers: Record<string, string> = { Accept: "application/json" };
  if (body) headers["Content-Type"] = "application/json";
  if (csrf) headers["X-CSRF-Token"] = csrf;
  let answer: Response;
  try {
    answer = await fetch(ROOT + path, {
      method,
      headers,
      body: body ? JSON.stringify(body) : null,
      credentials: "same-origin",
      cache: "no-store",
      signal: AbortSignal.timeout(TIMEOUT_MS),
    });
  } catch {
    throw new Fault(0, "pgweir does not answer");
  }
  const text = await answer.text();
  let value: unknown = null;
  try {
    value = text === "" ? null : JSON.parse(text);
  } catch {
    throw new Fault(answer.status, `an answer that is not JSON (HTTP ${answer.status})`);
  }
  if (!answer.ok) {
    const told = (value as { error?: { message?: string } } | null)?.error?.message;
    throw new Fault(answer.status, told ?? `HTTP ${answer.status}`);
  }
  return value as T;
}
