import { expect, test } from "vitest";

import type { ClusterSummary, Database, Overview, Pool, Quantiles } from "../src/api";
import { connectError, findings, foundOn, lookAt } from "../src/verdict";

const spread = (mean_us: number): Quantiles => ({ mean_us, p50_us: mean_us, p90_us: mean_us, p95_us: mean_us, p99_us: mean_us, p999_us: mean_us, max_us: mean_us });
const RATES = { transactions: 100, queries: 300, received_bytes: 0, sent_bytes: 0, errors: 0, logins: 0 };

interface Some extends Partial<Omit<Pool, "clients" | "servers" | "latency" | "rates">> {
  clients?: Partial<Pool["clients"]>;
  servers?: Partial<Pool["servers"]>;
  rates?: Partial<Pool["rates"]>;
}

function pool({ clients, servers, rates, ...more }: Some = {}): Pool {
  return {
    lately: { clients_active: clients?.active ?? 10, clients_waiting: clients?.waiting ?? 0, servers_active: servers?.active ?? 10 },
    database: "shop", user: "web", mode: "transaction", paused: false, wait_oldest_us: 0, connect_failing: false, next_connect_us: null, last_connect_error: null,
    clients: { total: 60, active: 10, multiplexed: 0, waiting: 0, idle: 50, pinned: 0, idle_in_transaction: 0, login: 0, ...clients },
    servers: { total: 10, active: 10, idle: 0, used: 0, tested: 0, login: 0, being_canceled: 0, limit: 10, ...servers },
    rates: { ...RATES, ...rates }, totals: RATES,
    latency: { count: 1, total: spread(1_000), wait: spread(10), server: null, client: null, transaction: null },
    ...more,
  };
}

function overview({ process = {}, ...more }: Partial<Omit<Overview, "process">> & { process?: Partial<Overview["process"]> } = {}): Overview {
  const { clients, servers, latency } = pool();
  return {
    time_s: 0, clients, servers, latency, rates: RATES, totals: RATES, queue: { waiting: 0, wait_oldest_us: 0 }, workers: [{ busy: 0.2, connections: 1 }], databases: [], errors: [], multiplexing: null, sessions: null,
    process: { version: "", started_s: 0, state: "active", paused_databases: [], pool_mode: "transaction", max_client_conn: 1_000, open_files: 10, open_files_max: 1_000, resident_bytes: 0, cpu_share: 0, ...process },
    ...more,
  };
}

function database(more: Partial<Database> = {}): Database {
  return { name: "shop", host: null, port: 5432, database: null, force_user: null, pool_size: 10, min_pool_size: 0, reserve_pool_size: 0, pool_mode: null, max_connections: 0, current_connections: 10, max_client_connections: 0, current_client_connections: 60, paused: false, disabled: false, ...more };
}

const told = (pools: Pool[], now = overview(), databases = [database()]) => findings(now, pools, databases).map((one) => `${one.tone} | ${one.text}: ${one.remedy}`);

test("a pooler that is well has no findings", () => {
  expect(told([])).toEqual([]);
  expect(told([pool()])).toEqual([]);
  expect(told([pool({ clients: { waiting: 3 }, wait_oldest_us: 900 })])).toEqual([]);
  // A pool with one server, and now and then a client that waits.
  expect(told([pool({ servers: { active: 1, total: 1, limit: 1 }, lately: { clients_active: 0.9, clients_waiting: 0.8, servers_active: 0.9 } })])).toEqual([]);
});

test("a queue is told with what it costs and what helps", () => {
  const crowd = { waiting: 50, idle_in_transaction: 9 };
  expect(told([pool({ clients: crowd })])).toEqual(["bad | shop: 10 of 10 servers busy, 50 clients waiting, 83 % of the time is queueing: raise pool_size or shorten transactions (9 idle in transaction)"]);
  expect(told([pool({ clients: { waiting: 5 } })])).toEqual(["attention | shop: 10 of 10 servers busy, 5 clients waiting, 33 % of the time is queueing: raise pool_size or shorten transactions"]);
  // Nothing has ended yet, so no average tells of it.
  const unknown = { clients_active: 0, clients_waiting: 0, servers_active: 0 };
  expect(told([pool({ clients: crowd, lately: unknown, wait_oldest_us: 12_000_000 })])[0]).toContain("bad | shop: 10 of 10 servers busy, 50 clients waiting, the longest for 12.0 s");
  expect(told([pool({ mode: "session", clients: crowd })])[0]).toContain("use pool_mode = transaction");
  expect(told([pool({ clients: { waiting: 5, pinned: 8 } })])[0]).toContain("8 clients keep their servers");
  const full = [database({ max_connections: 10 })];
  expect(told([pool({ clients: crowd })], overview(), full)[0]).toContain(": raise max_db_connections or");
});

test("a burst that leaves servers free most of the time is no finding", () => {
  expect(told([pool({ lately: { clients_active: 0.4, clients_waiting: 4, servers_active: 0.4 } })])).toEqual([]);
  // What counts is the average: at this very moment nothing waits.
  expect(told([pool({ clients: { waiting: 0 }, servers: { active: 1 }, lately: { clients_active: 9.8, clients_waiting: 48.7, servers_active: 9.8 } })])[0]).toContain("10 of 10 servers busy, 49 clients waiting");
});

test("a pool that may still grow is a finding only when clients wait long", () => {
  const growing = { servers: { total: 3, active: 3, limit: 10 }, clients: { waiting: 5 } };
  expect(told([pool(growing)])).toEqual([]);
  expect(told([pool({ ...growing, wait_oldest_us: 2_000_000 })])[0]).toContain("see the log and max_user_connections");
});

test("a server that cannot be reached: why, and when it is tried again", () => {
  const broken = { database: "old", connect_failing: true, next_connect_us: 3_400_000, last_connect_error: "connection to server failed: connection refused" };
  expect(told([pool({ ...broken, clients: { waiting: 2 } })])).toEqual([
    "bad | database old: cannot connect: connection refused, next attempt in 4 s, 2 clients waiting: check host, port and password of the database, and that PostgreSQL runs",
  ]);
  expect(told([pool({ ...broken, next_connect_us: 0 })])[0]).toContain("connection refused, next attempt when a client needs a server:");
});

test("the reason of a failed connection comes first, its address last", () => {
  expect(connectError("connect failed: connect to 10.0.0.5:5432 failed: Connection refused")).toBe("Connection refused (10.0.0.5:5432)");
  expect(connectError("connection to server failed: no such host")).toBe("no such host");
  expect(connectError('password authentication failed for user "web"')).toBe('password authentication failed for user "web"');
});

test("readers that see no names are told without them", () => {
  const hidden = [pool({ user: null, connect_failing: true, next_connect_us: 1_000_000 })];
  expect(told(hidden)).toEqual(["bad | database shop: cannot connect, next attempt in 1 s: sign in to see the reason"]);
});

test("users are named only where a database has several pools", () => {
  const slow = { clients: { waiting: 12 } };
  expect(told([pool(slow), pool({ user: "worker" })])[0]).toContain("bad | shop (user web): ");
});

test("servers that are held, errors, and the limits of the process", () => {
  expect(told([pool({ clients: { idle_in_transaction: 5 } })])).toEqual(["attention | shop: 5 of 10 servers are idle in transaction: end transactions sooner, or set idle_transaction_timeout"]);
  expect(told([pool({ clients: { idle_in_transaction: 4 } })])).toEqual([]);
  expect(told([pool({ clients: { pinned: 6 } })])[0]).toContain("6 of 10 servers are kept by their clients");
  expect(told([pool({ rates: { errors: 30 } })])[0]).toContain("shop: 30 errors per second");
  expect(told([pool({ rates: { errors: 2 } })])).toEqual([]);
  expect(told([], overview({ process: { max_client_conn: 64 } }))).toEqual(["attention | 60 of 64 clients: raise max_client_conn"]);
  expect(told([], overview({ process: { max_client_conn: 60 } }))).toEqual(["bad | 60 of 60 clients: new clients are refused: raise max_client_conn"]);
  expect(told([], overview({ process: { open_files: 950 } }))[0]).toContain("950 of 1,000 files are open");
  expect(told([], overview({ workers: [{ busy: 0.1, connections: 1 }, { busy: 0.99, connections: 1 }] }))[0]).toContain("a worker is busy 99 % of the time");
  expect(told([], overview({ rates: { ...RATES, logins: 90 } }))[0]).toContain("90 logins per second for 100 transactions");
});

test("pauses, and a shutdown", () => {
  const paused = overview({ process: { paused_databases: ["shop"] } });
  expect(told([pool({ paused: true, clients: { waiting: 7 }, wait_oldest_us: 5e6 })], paused)).toEqual(["bad | shop is paused, 7 clients waiting: RESUME shop"]);
  expect(told([pool({ paused: true })], paused)).toEqual(["attention | shop is paused: RESUME shop"]);
  expect(told([], overview({ process: { state: "paused" } }))).toEqual(["bad | All databases are paused: RESUME"]);
  expect(told([], overview({ process: { state: "stopping" } }))[0]).toContain("attention | pgweir is shutting down");
  expect(told([], overview(), [database({ disabled: true })])).toEqual(["attention | shop is disabled: new clients are refused: ENABLE shop"]);
});

test("a cluster without a primary is one finding, whatever its pools look like", () => {
  const nodes: ClusterSummary["nodes"] = [{ name: "m1", state: "down", switch: "attached" }, { name: "m2", state: "standby", switch: "detached" }];
  const now = overview({ clusters: [{ name: "main", primary: null, held_clients: 7, nodes }] });
  const pools = [pool({ clients: { waiting: 7 }, wait_oldest_us: 5e6, connect_failing: true })];
  expect(told(pools, now, [database({ cluster: "main" })])).toEqual([
    "bad | cluster main has no primary, 7 clients waiting: see what each node is, and why; pgweir promotes none",
    "attention | node m1 of cluster main is down: see its last error",
    "attention | node m2 of cluster main is detached: ATTACH NODE main.m2",
  ]);
  expect(told([], overview({ clusters: [{ name: "main", primary: "m1", held_clients: 0, nodes: [] }] }))).toEqual([]);
});

test("the worst comes first", () => {
  const found = told([pool({ clients: { idle_in_transaction: 8 } }), pool({ database: "old", connect_failing: true })]);
  expect(found.map((one) => one.split(" ")[0])).toEqual(["bad", "attention"]);
});

test("a finding is told on the page that its link leads to", () => {
  const cluster: ClusterSummary = { name: "main", primary: null, held_clients: 3, nodes: [] };
  const crowded = { ...pool().clients, total: 990 };
  const now = overview({ clusters: [cluster], clients: crowded, process: { open_files: 990, paused_databases: ["old"] } });
  const all = findings(now, [pool({ clients: { waiting: 50 } })], [database()]);
  const on = (page: string, ...parts: string[]) => foundOn({ page, parts }, all).map((one) => one.text.split(/[:,]/)[0]);
  expect(on("database", "shop")).toEqual(["shop"]);
  expect(on("database", "shop", "web")).toEqual(["shop"]);
  expect(on("database", "old")).toEqual(["old is paused"]);
  expect(on("clusters")).toEqual(["cluster main has no primary"]);
  expect(on("clients")).toEqual(["990 of 1"]);
  expect(on("details")).toEqual(["990 of 1"]);
  expect(on("log")).toEqual([]);
  // Every finding but those of the whole process's state leads to a page that tells it.
  expect(all.filter((one) => lookAt(one) === null)).toEqual([]);
  expect(findings(overview({ process: { state: "paused" } }), [], []).map(lookAt)).toEqual([null]);
});
