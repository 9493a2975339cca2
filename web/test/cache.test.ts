import { expect, test } from "vitest";

import type { Cache, CachePool, CacheRule, FollowedDatabase, Statement } from "../src/api";
import { drops, ending, gains, hindrance, obstacle, oldest, quotient, ratio, ratios, reachable, setting, total, unserved, wrongAnswers } from "../src/cache";

const pool = (change: Partial<CachePool>): CachePool => ({
  database: "shop", user: "web", states: ["on"], answers: 0, bytes: 0, hits: 0, coalesced: 0, misses: 0, expired: 0, own_changes: 0, redefined: 0, fills: 0, too_long: 0, unfit: 0, evicted: 0, purged: 0, saved_us: 0,
  dropped_by_write: 0, dropped_by_key: 0, not_fresh: 0, refused_unsettled: 0, verified: 0, wrong: 0, age_p50_ms: null, age_max_ms: null, ...change,
});
const cache = (change: Partial<Cache>): Cache => ({ time_s: 1, query_cache: "on", bytes_max: 1_000, answer_bytes_max: 100, query_cache_verify: 0, rules_total: 1, rules: [], followed: [], pools: [], ...change });
const statement = (fingerprint: string, change: Partial<Statement>): Statement => ({
  fingerprint, text: `select ${fingerprint}`, database: "shop", user: "web", calls: 5, errors: 0, total_us: 0, wait_us: 0, server_us: 0, client_us: 0, mean_us: 0, p50_us: 0, p95_us: 0, p99_us: 0, max_us: 0, rows: 0,
  bytes: 0, cache: "off", cache_hits: 0, cache_saved_us: 0, ...change,
});

test("pools add up", () => {
  const pools = [pool({ hits: 3, age_max_ms: 40 }), pool({ hits: 4 }), pool({ hits: 1, age_max_ms: 90 })];
  expect(total(pools, "hits")).toBe(8);
  expect(oldest(pools)).toBe(90);
  expect(oldest([pool({})])).toBe(null);
});

test("a ratio of nothing is no figure", () => {
  expect(ratio(0, 0)).toBe(null);
  expect(ratio(3, 1)).toBe(0.75);
  expect(ratios([3, 0, null, 2], [1, 0, null, 0])).toEqual([0.75, null, null, 1]);
  expect(quotient([30, 0, null, 5], [3, 0, null, null])).toEqual([10, null, null, null]);
});

test("each counter of what drops answers has its reason", () => {
  const found = drops([pool({ expired: 1, own_changes: 2, redefined: 3, evicted: 4, dropped_by_write: 8, dropped_by_key: 2 }), pool({ purged: 5, too_long: 6, unfit: 7, expired: 10, not_fresh: 9, refused_unsettled: 10 })]);
  expect(found.map((drop) => [drop.reason, drop.count])).toEqual([
    ["Too old", 11],
    ["The client's own change", 2],
    ["A table was changed", 8],
    ["Not told in time", 9],
    ["Changed while it ran", 10],
    ["Definitions or rights", 3],
    ["No room", 4],
    ["Dropped together", 5],
    ["Too long", 6],
    ["Error or notice", 7],
  ]);
  expect(found[2]?.meaning).toMatch(/was changed; 2 of these answers depended on one row \(by key\)$/);
  expect(drops([pool({})])[2]?.meaning).toMatch(/was changed$/);
});

test("a rule tells when its answers end", () => {
  const rule = (follow: CacheRule["follow"], ttl_ms: number | null): CacheRule => ({ name: "one", database: null, user: null, application_name: null, tables: [], follow, ttl_ms });
  expect(ending(rule("time", 10_000))).toBe("it is 10.0 s old");
  expect(ending(rule("wal", null))).toBe("its tables change");
  expect(ending(rule("wal", 1_000))).toBe("its tables change, or it is 1.00 s old");
});

test("a database that is not followed has its reason, for those who may know it", () => {
  const one = (state: string, reason: string | null): FollowedDatabase => ({ database: "shop", state, reason, since_s: 1, tables: null, lag_bytes: null });
  expect(hindrance(one("following", null))).toBe(null);
  expect(hindrance(one("opening", "connecting"))).toBe("connecting");
  expect(hindrance(one("off", null))).toBe("Shown to those who sign in.");
});

test("wrong answers are counted over all pools, with what to do", () => {
  expect(wrongAnswers([pool({ verified: 5 })])).toBe(null);
  expect(wrongAnswers([pool({ wrong: 1 }), pool({})])?.text).toBe("1 kept answer was wrong");
  const found = wrongAnswers([pool({ wrong: 1 }), pool({ wrong: 2 })]);
  expect(found?.text).toBe("3 kept answers were wrong");
  expect(found?.remedy).toMatch(/Set query_cache = off and RELOAD; then report it with the line of the log/);
});

test("the page says why nothing is kept", () => {
  expect(setting(cache({ query_cache: "off" }))).toMatch(/^The cache is off\./);
  expect(setting(cache({ rules_total: 0 }))).toMatch(/\[cache\] has no rule/);
  expect(setting(cache({ rules_total: 1 }))).toMatch(/that a rule of \[cache\] names\.$/);
  expect(setting(cache({ rules_total: 2 }))).toMatch(/that 2 rules of/);
  expect(setting(cache({ query_cache: "hinted", rules_total: 0 }))).toMatch(/query_cache is hinted, but \[cache\] has no rule/);
  expect(setting(cache({ query_cache: "hinted" }))).toMatch(/names, if the statement asks for it in a comment/);
  expect(setting(cache({ query_cache: "coalesce" }))).toMatch(/^No answer is kept/);
});

test("pools that are not served are named with the reason, unless all is off", () => {
  const pools = [pool({}), pool({ user: "batch", states: ["off: pool_mode=session"] }), pool({ database: "other", user: null, states: ["off: no rule", "on"] }), pool({ user: "odd", states: ["off: new"] })];
  expect(unserved(cache({ pools })).map(({ pool, why }) => `${pool}: ${why}`)).toEqual([
    "shop, batch: pool_mode=session: pgweir does not know the settings of the clients' sessions",
    "other: no rule of [cache] names this database",
    "shop, odd: off: new",
  ]);
  expect(unserved(cache({ query_cache: "off", pools }))).toEqual([]);
});

test("ten statements, by what they save and might save; once each", () => {
  const many = Array.from({ length: 12 }, (_, n) => statement(`${n}`, { server_us: n }));
  const hot = statement("hot", { cache: "yes", cache_hits: 9, cache_saved_us: 500, server_us: 1, calls: 1 });
  const others = [
    statement("write", { cache: "not a SELECT", server_us: 9_000 }),
    statement("update", { cache: "may change data: update", server_us: 9_000 }),
    statement("once", { calls: 1, server_us: 9_000 }),
    statement("of an old version", { cache: "", server_us: 9_000 }),
    statement("f", { cache: "function f() may change data", server_us: 300 }),
    statement("unruled", { cache: "no rule", server_us: 200 }),
  ];
  const found = gains([...many, ...others, hot], [hot]);
  expect(found.map((gain) => gain.statement.fingerprint)).toEqual(["hot", "f", "unruled", "11", "10", "9", "8", "7", "6", "5"]);
  expect(reachable(found)).toBe(200 + 11 + 10 + 9 + 8 + 7 + 6 + 5);
});

test("an obstacle has its remedy where there is one", () => {
  expect(obstacle("yes")).toEqual({ text: "nothing", remedy: null, can: true });
  expect(obstacle("yes, by key")).toEqual(obstacle("yes"));
  expect(obstacle("no rule").can).toBe(true);
  expect(obstacle("function f() may change data").remedy).toMatch(/read_functions/);
  expect(obstacle("changes are not followed, see SHOW CACHE").text).toBe("changes are not followed");
  expect(obstacle("function random()")).toEqual({ text: "function random()", remedy: null, can: false });
});
