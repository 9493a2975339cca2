// A made-up pooler that answers docs/openapi.yaml, for developing the page. Its load swells and ebbs, and sometimes it queues.
// Signing in: any user, the password is "secret"; the user "admin" may act. The database "old" cannot be reached.

const DATABASES = [
  { name: "shop", user: "web", share: 1, limit: 20 },
  { name: "shop", user: "worker", share: 0.25, limit: 20 },
  { name: "reports", user: "analyst", share: 0.05, limit: 5, mode: "session" },
  { name: "ledger", user: "web", share: 0.4, limit: 10 },
  { name: "old", user: "web", share: 0.05, limit: 5, down: true },
];
// MANY=1000: as many further databases, to see how the page copes.
for (let n = 0; n < Number(process.env.MANY ?? 0); n += 1) DATABASES.push({ name: `tenant_${n}`, user: "web", share: 0.02 + (n % 7) / 100, limit: 5 });
const STATEMENTS = [
  ["SELECT abalance FROM pgbench_accounts WHERE aid = ?", 800_000, 120],
  ["UPDATE pgbench_branches SET bbalance = bbalance + ? WHERE bid = ?", 210_000, 2400],
  ["UPDATE pgbench_tellers SET tbalance = tbalance + ? WHERE tid = ?", 210_000, 900],
  ["SELECT o.id, o.placed_at, o.state, c.name, c.email, sum(l.amount * l.price) AS total FROM orders o JOIN customers c ON c.id = o.customer JOIN lines l ON l.order_id = o.id WHERE o.placed_at > now() - ?::interval AND o.state = ANY(?) GROUP BY 1, 2, 3, 4, 5 ORDER BY o.placed_at DESC LIMIT ?", 1200, 184_000],
  ["BEGIN", 210_000, 40],
  ["COMMIT", 210_000, 410],
  ["INSERT INTO pgbench_history (tid, bid, aid, delta, mtime) VALUES (?, ?, ?, ?, CURRENT_TIMESTAMP)", 210_000, 150],
];

const wave = (t, period, phase = 0) => 0.5 + 0.5 * Math.sin((2 * Math.PI * t) / period + phase);
const noise = (t, seed) => {
  const x = Math.sin(t * 12.9898 + seed * 78.233) * 43758.5453;
  return x - Math.floor(x);
};
const quantiles = (p50) => ({ mean_us: p50 * 1.3, p50_us: p50, p90_us: p50 * 2.2, p95_us: p50 * 3, p99_us: p50 * 6, p999_us: p50 * 14, max_us: p50 * 30 });

export class Play {
  constructor() {
    this.started = Date.now() / 1000 - 273_000;
    this.paused = new Set();
    this.session = null;
  }

  /** One pool at one time. */
  pool(pool, t) {
    const load = (0.25 + 0.75 * wave(t, 240, pool.share * 9)) * (0.9 + 0.2 * noise(Math.floor(t), pool.share));
    const total = Math.round(200 * pool.share * (0.8 + 0.2 * wave(t, 600)));
    const paused = this.paused.has(pool.name) || pool.down === true;
    const want = Math.round(total * 0.13 * load * (wave(t, 240, pool.share * 9) > 0.85 ? 1.5 : 1));
    const active = paused ? 0 : Math.min(want, pool.limit);
    const waiting = paused ? want : Math.max(0, want - pool.limit);
    const open = paused ? 0 : Math.min(pool.limit, active + 2);
    const tps = paused ? 0 : active * 310 * (0.9 + 0.2 * noise(t, 3));
    const wait = waiting > 0 ? 2200 * waiting : 30;
    const work = 900 + 900 * load;
    return { active, waiting, idle: Math.max(0, total - active - waiting), pinned: pool.mode === "session" ? Math.min(1, active) : 0, open, tps, wait, work, read: 40 + 90 * noise(t, 5), errors: noise(Math.floor(t), 8) > 0.93 ? 3 * pool.share : 0, oldest: paused ? 1e6 * (t % 100) : waiting > 0 ? wait * 3 : 0 };
  }

  clients(one, login = 0) {
    return { total: one.active + one.waiting + one.idle + login, active: one.active, multiplexed: 0, waiting: one.waiting, idle: one.idle, pinned: one.pinned, idle_in_transaction: Math.floor(one.active / 4), login };
  }

  servers(one, limit) {
    return { total: one.open, active: one.active, idle: Math.max(0, one.open - one.active), used: 0, tested: 0, login: 0, being_canceled: 0, limit };
  }

  rates(one) {
    return { transactions: one.tps, queries: one.tps * 3.5, received_bytes: one.tps * 420, sent_bytes: one.tps * 910, errors: one.errors, logins: 0.4 };
  }

  latency(one) {
    const total = one.wait + one.work + one.read;
    return { count: one.tps * 10, total: quantiles(total * 0.8), wait: quantiles(one.wait * 0.8), server: quantiles(one.work * 0.8), client: quantiles(one.read * 0.8), transaction: quantiles(total * 2) };
  }

  sum(t, pools = DATABASES) {
    const all = pools.map((pool) => this.pool(pool, t));
    const add = (name) => all.reduce((sum, one) => sum + one[name], 0);
    const most = (name) => Math.max(0, ...all.map((one) => one[name]));
    return { active: add("active"), waiting: add("waiting"), idle: add("idle"), pinned: add("pinned"), open: add("open"), tps: add("tps"), errors: add("errors"), wait: most("wait"), work: most("work"), read: most("read"), oldest: most("oldest") };
  }

  role() {
    return this.session ?? { role: "anonymous", user: null, csrf: null, sees_names: false, may_act: false, anonymous: "numbers", sign_in: true };
  }

  answer(method, url, body) {
    const t = Date.now() / 1000;
    const path = url.pathname.replace("/api/v1/", "");
    const names = this.role().sees_names;
    const limit = Number(url.searchParams.get("limit") ?? 100);
    if (path === "session" && method === "POST") return this.signIn(JSON.parse(body));
    if (path === "session" && method === "DELETE") this.session = null;
    if (path.startsWith("actions/")) return this.act(path.slice(8), JSON.parse(body));
    switch (path) {
      case "session": return { value: this.role() };
      case "overview": return { value: this.overview(t) };
      case "series": return { value: this.series(t, url.searchParams) };
      case "pools": return { value: { time_s: t, pools: this.pools(t, names) } };
      case "databases": return { value: { databases: [...new Set([...DATABASES.map((pool) => pool.name), "archive", "staging"])].map((name) => ({ name, host: names ? "10.0.0.5" : null, port: 5432, database: names ? name : null, force_user: null, pool_size: 20, min_pool_size: 0, reserve_pool_size: 5, pool_mode: null, max_connections: 0, current_connections: 9, max_client_connections: 0, current_client_connections: 80, paused: this.paused.has(name), disabled: false })) } };
      case "percentiles": return { value: { rows: [{ database: null, user: null, latency: this.latency(this.sum(t)) }, ...DATABASES.map((pool) => ({ database: pool.name, user: names ? pool.user : null, latency: this.latency(this.pool(pool, t)) }))] } };
      case "clients": return { value: this.clientRows(t, names, limit, url.searchParams) };
      case "servers": return { value: this.serverRows(t, names, limit, url.searchParams) };
      case "statements": return names ? { value: this.statements(t, url.searchParams) } : { status: 403, value: { error: { code: "forbidden", message: "statements are shown to signed-in readers" } } };
      case "applications": return names ? { value: { time_s: t, total: 2, applications: ["checkout", ""].map((name, at) => ({ name, clients: 40 + at, active: 6, idle_in_transaction: 2 - at, pinned: at, waiting: 9 - 9 * at, idle: 23, wait_oldest_us: at === 0 ? 1_300_000 : 0, transaction_oldest_us: 4_200_000, databases: ["shop"], users: ["web"] })) } } : { status: 403, value: { error: { code: "forbidden", message: "sign in" } } };
      case "log": return names ? { value: { lines: [{ id: 3, time_s: t - 2, level: "log", message: "C-0x20: shop/web@10.0.0.7:50123 login attempt: db=shop user=web tls=no replication=no" }, { id: 2, time_s: t - 40, level: "warning", message: "C-0x1f: shop/web@10.0.0.7:50122 pooler error: query_wait_timeout" }, { id: 1, time_s: t - 4000, level: "error", message: "S-0x07: reports/analyst@10.0.0.5:5432 closing because: server conn crashed? (age=12s)" }] } } : { status: 403, value: { error: { code: "forbidden", message: "sign in" } } };
      case "cache": return { value: this.cache(t, names) };
      case "settings": return { value: { settings: settings(names) } };
      default: return { status: 404, value: { error: { code: "not_found", message: "no such thing" } } };
    }
  }

  signIn({ user, password }) {
    if (password !== "secret") return { status: 401, value: { error: { code: "unauthorized", message: "wrong user or password" } } };
    this.session = { role: user === "admin" ? "admin" : "stats", user, csrf: "token", sees_names: true, may_act: user === "admin", anonymous: "numbers", sign_in: true };
    return { value: this.session };
  }

  act(action, { database }) {
    if (!this.role().may_act) return { status: 403, value: { error: { code: "forbidden", message: "admins only" } } };
    const names = database ? [database] : DATABASES.map((one) => one.name);
    for (const name of names) {
      if (action === "pause" || action === "kill") this.paused.add(name);
      if (action === "resume") this.paused.delete(name);
    }
    return { value: { done: true, message: `${action.toUpperCase()} ${database ?? ""}`.trim() } };
  }

  overview(t) {
    const one = this.sum(t);
    const databases = [...new Set(DATABASES.map((pool) => pool.name))].map((name) => {
      const its = this.sum(t, DATABASES.filter((pool) => pool.name === name));
      return { name, paused: this.paused.has(name), disabled: false, clients: this.clients(its), servers: this.servers(its, 20), rates: this.rates(its), p50_us: 800, p99_us: 9000, wait_oldest_us: its.oldest };
    });
    return {
      time_s: t,
      process: { version: "0.1.0", machine: "db1", started_s: this.started, state: "active", paused_databases: [...this.paused], pool_mode: "transaction", max_client_conn: 5000, listen: ["127.0.0.1:6432"], open_files: 260, open_files_max: 65536, resident_bytes: 14_800_000, cpu_share: 0.31 + 0.2 * wave(t, 240) },
      clients: this.clients(one), servers: this.servers(one, 55), rates: this.rates(one),
      totals: { transactions: 4_812_331_442, queries: 1e10, received_bytes: 1e12, sent_bytes: 3e12, errors: 5120, logins: 88_000 },
      latency: this.latency(one), queue: { waiting: one.waiting, wait_oldest_us: one.oldest },
      workers: [{ busy: 0.2 + 0.3 * wave(t, 240), connections: 300 }], databases,
      errors: [{ class: "23", name: "integrity constraint violation", total: 4021 }, { class: "40", name: "transaction rollback", total: 880 }, { class: "57", name: "operator intervention", total: 12 }],
      multiplexing: { target: 4, busy: 3, multiplexed: 6, multiplexed_total: 48_120_331, requeued_total: 12, violations_total: 0 },
      sessions: { pinned: 2, pins_total: 41, replays_total: 803_112, audits_total: 977, remembered_total: 61_204 },
    };
  }

  pools(t, names) {
    return DATABASES.map((pool) => {
      const one = this.pool(pool, t);
      return { database: pool.name, user: names ? pool.user : null, mode: pool.mode ?? "transaction", paused: this.paused.has(pool.name), clients: this.clients(one), servers: this.servers(one, pool.limit), rates: this.rates(one), totals: this.rates(one), latency: this.latency(one), wait_oldest_us: one.oldest, lately: { clients_active: one.active, clients_waiting: one.waiting, servers_active: one.active }, connect_failing: pool.down === true, next_connect_us: pool.down ? 1e6 * (15 - (t % 15)) : null, last_connect_error: names && pool.down ? "connection to server failed: connection refused" : null };
    }).filter((pool, at, all) => names || all.findIndex((other) => other.database === pool.database) === at);
  }

  series(t, query) {
    const window = Number(query.get("window") ?? 300);
    const step = window > 300 ? 10 : 1;
    const since = Number(query.get("since") ?? 0);
    const pools = DATABASES.filter((pool) => !query.get("database") || (pool.name === query.get("database") && (!query.get("user") || pool.user === query.get("user"))));
    const times = [];
    for (let at = Math.floor((t - window) / step) * step; at <= t - step; at += step) if (at > since) times.push(at);
    const all = times.map((at) => this.sum(at, pools));
    const column = (of) => all.map(of);
    return {
      step_s: step, time_s: times,
      columns: {
        clients_active: column((s) => s.active), clients_waiting: column((s) => s.waiting), clients_idle: column((s) => s.idle), servers_active: column((s) => s.active), servers_idle: column((s) => s.open - s.active), servers_login: column(() => 0),
        transactions: column((s) => s.tps), queries: column((s) => s.tps * 3.5), received_bytes: column((s) => s.tps * 420), sent_bytes: column((s) => s.tps * 910), errors: column((s) => s.errors), logins: column(() => 0.4),
        cache_hits: column((s) => s.tps * 3), cache_coalesced: column((s) => s.waiting * 2), cache_misses: column((s) => s.tps * 0.4), cache_aged: column((s) => s.tps * 3), cache_age_us: column((s) => s.tps * 3 * (300_000 + 10 * s.wait)), cache_saved_us: column((s) => s.tps * 3 * s.work), cache_bytes: column((s) => 5_000_000 + s.tps * 200),
        wait_oldest_us: column((s) => s.oldest), total_p50_us: column((s) => s.work), total_p95_us: column((s) => s.work * 2.4 + s.wait), total_p99_us: column((s) => s.work * 4 + s.wait * 2),
        wait_p95_us: column((s) => s.wait * 1.6), wait_mean_us: column((s) => s.wait), server_mean_us: column((s) => s.work), client_mean_us: column((s) => s.read),
      },
    };
  }

  cache(t, names) {
    const pools = DATABASES.filter((pool) => !pool.name.startsWith("tenant")).map((pool) => {
      const hits = Math.round(4_000_000 * pool.share + 900 * pool.share * (t % 100_000));
      const on = pool.mode !== "session";
      return { database: pool.name, user: names ? pool.user : null, states: [on ? "on" : "off: pool_mode=session"], ...Object.fromEntries(["answers", "bytes", "hits", "coalesced", "misses", "expired", "own_changes", "redefined", "fills", "too_long", "unfit", "evicted", "purged", "saved_us", "dropped_by_write", "dropped_by_key", "not_fresh", "refused_unsettled", "verified", "wrong"].map((name, at) => [name, on ? Math.round([900 * pool.share, 2_000_000 * pool.share, hits, hits / 90, hits / 12, hits / 15, hits / 400, 12, hits / 13, 41, 3, hits / 900, 250, hits * 140, hits / 300, hits / 700, hits / 5_000, 40, hits / 1_000, 0][at]) : 0])), age_p50_ms: on ? 420 : null, age_max_ms: on ? 9_990 : null };
    });
    const rules = [{ name: "dashboards", database: null, user: "analyst", application_name: null, tables: [], follow: "time", ttl_ms: 10_000 }, { name: "catalogue", database: "shop", user: null, application_name: null, tables: ["products", "prices"], follow: "wal", ttl_ms: null }];
    const reason = 'role "pgweir_cache" needs the right REPLICATION: ALTER ROLE "pgweir_cache" REPLICATION';
    const followed = [{ database: "shop", state: "following", reason: null, since_s: Math.floor(t) - 4_000, tables: 2, lag_bytes: 4_120 }, { database: "reports", state: "off", reason: names ? reason : null, since_s: Math.floor(t) - 40, tables: null, lag_bytes: null }];
    return { time_s: t, query_cache: "on", bytes_max: 67_108_864, answer_bytes_max: 65_536, query_cache_verify: 1_000, rules_total: 2, rules: names ? rules : [], followed, pools };
  }

  clientRows(t, names, limit, query) {
    const rows = [];
    for (const pool of DATABASES) {
      const one = this.pool(pool, t);
      const open = Math.floor(one.active / 4);
      const counts = { waiting: one.waiting, idle_in_transaction: open, active: one.active - open, idle: one.idle };
      for (const [state, members] of Object.entries(counts)) {
        for (let n = 0; n < members; n += 1) {
          rows.push({
            id: rows.length + 1, database: pool.name, user: names ? pool.user : null, application_name: names ? "checkout" : null, address: names ? `10.1.0.${n % 250}:${40_000 + n}` : null, state,
            reason: { waiting: `waits for a server: all ${pool.limit} are busy`, idle_in_transaction: "in a transaction, has sent nothing since its last statement" }[state] ?? null,
            since_s: t - 40 - n * 31, request_s: t - 1, wait_us: state.startsWith("idle") ? 0 : 900 + n * 77, transaction_us: state === "idle_in_transaction" ? 2_400_000 + n * 31_000 : state === "active" ? 1_200 + n * 90 : 0, statement: names && state === "active" ? "0000000000000000" : null, server_id: state === "active" ? n + 1 : null, prepared_statements: n % 4, tls: names && n % 2 ? "TLSv1.3/TLS13_AES_256_GCM_SHA384" : null, replication: null,
          });
        }
      }
    }
    const found = rows.filter((row) => ["state", "database", "user", "application_name"].every((name) => !query.get(name) || row[name] === query.get(name)));
    return { time_s: t, total: found.length, choices: choices(rows, names), clients: found.slice(0, limit) };
  }

  serverRows(t, names, limit, query) {
    const rows = [];
    for (const pool of DATABASES) {
      const one = this.pool(pool, t);
      for (let n = 0; n < one.open; n += 1) {
        const busy = n < one.active;
        rows.push({ id: rows.length + 1, database: pool.name, user: names ? pool.user : null, address: names ? "10.0.0.5:5432" : null, state: busy ? "active" : "idle", reason: null, since_s: t - 400 - 60 * n, request_s: t - 0.2, active_us: busy ? 800 + n * 55 : 0, transaction_us: busy ? 900 + n * 55 : 0, statement: names && busy ? "0000000000000000" : null, client_id: busy ? n + 1 : null, application_name: names ? "checkout" : null, backend_pid: 21_000 + rows.length, close_needed: n === 7, prepared_statements: 12, tls: null });
      }
    }
    const found = rows.filter((row) => ["state", "database", "user", "application_name"].every((name) => !query.get(name) || row[name] === query.get(name)));
    return { time_s: t, total: found.length, choices: choices(rows, names), servers: found.slice(0, limit) };
  }

  statements(t, query) {
    const sort = query.get("sort") ?? "total_us";
    const statements = STATEMENTS.map(([text, calls, mean], at) => ({ fingerprint: `${at}`.padStart(16, "0"), text, database: "shop", user: "web", calls, errors: at === 1 ? 12 : 0, total_us: calls * mean, wait_us: calls * 14, server_us: calls * (mean - 16), client_us: calls * 2, max_us: mean * 9, mean_us: mean, p50_us: mean * 0.8, p95_us: mean * 2, p99_us: mean * 4, rows: calls, bytes: calls * 90, cache: ["yes", "not a SELECT", "not a SELECT", "no rule", "not a SELECT", "not a SELECT", "not a SELECT"][at], cache_hits: at === 0 ? calls * 9 : 0, cache_saved_us: at === 0 ? calls * 9 * mean : 0 }));
    statements.sort((a, b) => b[sort] - a[sort]);
    return { time_s: t, enabled: true, tracked: STATEMENTS.length, forgotten: 0, statements, slow_ms: 200, slow: [{ time_s: t - 20, database: "shop", user: "web", application_name: "checkout", text: STATEMENTS[0][0], total_us: 412_000, wait_us: 31_000, server_us: 380_000, client_us: 1_000, rows: 12, bytes: 4_200, failed: false }] };
  }
}

function choices(rows, names) {
  const of = (name) => [...new Set(rows.map((row) => row[name]).filter(Boolean))];
  return names ? { database: of("database"), user: of("user"), application_name: of("application_name") } : { database: of("database") };
}

function settings(names) {
  const rows = [
    ["Pools", "pool_mode", "transaction", "session", "session, transaction, statement", "When a server connection goes back to its pool: at the end of a `transaction`, of a `session`, or of a `statement`."],
    ["Pools", "default_pool_size", "20", "20", "whole number", "The maximum number of server connections in a pool. Each combination of a user and a database has its own pool. 0 means as many as are needed."],
    ["Pools", "query_wait_timeout", "120", "120", "seconds", "How long a client waits for a server before it is dropped. 0: without limit."],
    ["Listening", "listen_addr", "127.0.0.1", "", "addresses", "Where clients are taken: addresses, separated by commas, or `*`."],
    ["Listening", "http_listen", "127.0.0.1:9127", "", "address:port", "Where this page is served. **Empty: nowhere.**"],
  ];
  return rows.map(([group, name, value, standard, takes, documentation]) => ({ name, group, value: names ? value : null, default: standard, takes, change: group === "Listening" ? "restart" : "reload", origin: name === "http_listen" ? "pgweir" : "pgbouncer", in_effect: true, documentation, changed: value !== standard }));
}

