// The query cache in figures and words: what it did, what drops answers, who is not served, which statements would gain.

import type { Cache, CachePool, CacheRule, Column, FollowedDatabase, Statement } from "./api";
import { count, counted, duration } from "./format";

/** Statements that are shown. */
const STATEMENTS_SHOWN = 10;
/** The cache would keep the answers, but is not used for the statement. */
const UNUSED = ["off", "no rule"];

type Counter = "answers" | "bytes" | "hits" | "coalesced" | "misses" | "expired" | "own_changes" | "redefined" | "fills" | "too_long" | "unfit" | "evicted" | "purged" | "saved_us" | "dropped_by_write" | "dropped_by_key" | "not_fresh" | "refused_unsettled" | "verified" | "wrong";

export function total(pools: CachePool[], name: Counter): number {
  return pools.reduce((sum, pool) => sum + pool[name], 0);
}

/** The part of `part` in `part` and `rest`; null where both are 0. */
export function ratio(part: number, rest: number): number | null {
  return part + rest > 0 ? part / (part + rest) : null;
}

/** The age of the oldest answer that was given, in milliseconds; null if none was. */
export function oldest(pools: CachePool[]): number | null {
  return pools.reduce<number | null>((most, { age_max_ms }) => (age_max_ms === null ? most : Math.max(most ?? 0, age_max_ms)), null);
}

/** `above` divided by `below` at each time; null where nothing was counted. */
export function quotient(above: Column, below: Column): Column {
  return above.map((value, at) => {
    const by = below[at];
    return value === null || by === null || by === undefined || by <= 0 ? null : value / by;
  });
}

/** Of the looks at the cache at each time, the part that were hits. */
export function ratios(hits: Column, misses: Column): Column {
  return hits.map((value, at) => (value === null ? null : ratio(value, misses[at] ?? 0)));
}

export interface Drop {
  reason: string;
  count: number;
  meaning: string;
}

/** Why answers were not kept, not given, or dropped; all reasons, also those that did not occur. */
export function drops(pools: CachePool[]): Drop[] {
  const of = (name: Counter) => total(pools, name);
  return [
    { reason: "Too old", count: of("expired"), meaning: "the kept answer had reached the age of its rule (ttl_ms); a new one replaced it" },
    { reason: "The client's own change", count: of("own_changes"), meaning: "the client had changed something after the kept answer was asked for; other clients may still get it" },
    { reason: "A table was changed", count: of("dropped_by_write"), meaning: `with follow=wal: PostgreSQL told that a table of the kept answer was changed${byKey(of("dropped_by_write"), of("dropped_by_key"))}` },
    { reason: "Not told in time", count: of("not_fresh"), meaning: "with follow=wal: the client waited 20 ms, and pgweir did not know yet that no table had changed" },
    { reason: "Changed while it ran", count: of("refused_unsettled"), meaning: "with follow=wal: a table was changed while the statement ran, or shortly before: not kept" },
    { reason: "Definitions or rights", count: of("redefined"), meaning: "CREATE, ALTER, DROP, GRANT or REVOKE went through pgweir, or the primary is another one" },
    { reason: "No room", count: of("evicted"), meaning: "the memory (query_cache_bytes) was full, and no client had asked for the answer again" },
    { reason: "Dropped together", count: of("purged"), meaning: "CACHE PURGE, RECONNECT, or another server" },
    { reason: "Too long", count: of("too_long"), meaning: "longer than query_cache_max_answer: not kept" },
    { reason: "Error or notice", count: of("unfit"), meaning: "the answer had an error, a notice or another message: not kept" },
  ];
}

function byKey(all: number, keyed: number): string {
  if (all === 0) return "";
  return `; ${count(keyed)} of these answers depended on one row (by key)`;
}

/** When an answer of the rule is not given any more. */
export function ending({ follow, ttl_ms }: CacheRule): string {
  return [follow === "wal" && "its tables change", ttl_ms !== null && `it is ${duration(ttl_ms * 1_000)} old`].filter(Boolean).join(", or ");
}

/** Why the changes of the database are not followed; null if they are. */
export function hindrance({ state, reason }: FollowedDatabase): string | null {
  if (state === "following") return null;
  return reason ?? "Shown to those who sign in.";
}

/** What to do about kept answers that were wrong; null if none was. */
export function wrongAnswers(pools: CachePool[]): { text: string; remedy: string } | null {
  const wrong = total(pools, "wrong");
  if (wrong === 0) return null;
  return {
    text: `${counted(wrong, "kept answer")} ${wrong === 1 ? "was" : "were"} wrong`,
    remedy: "PostgreSQL had other rows, and told of no change. Set query_cache = off and RELOAD; then report it with the line of the log that names the statement.",
  };
}

/** What the cache is set to, in a sentence. */
export function setting(cache: Cache): string {
  switch (cache.query_cache) {
    case "coalesce":
      return "No answer is kept: if clients wait for a server with the same read, one of them runs, and its answer is for all that waited (query_cache = coalesce).";
    case "hinted":
    case "on": {
      if (cache.rules_total === 0) {
        return `No answer is kept: query_cache is ${cache.query_cache}, but [cache] has no rule. Add one, for example dashboards = user=grafana ttl_ms=10000, and RELOAD.`;
      }
      const named = `the clients and tables that ${cache.rules_total === 1 ? "a rule of [cache] names" : `${cache.rules_total} rules of [cache] name`}`;
      return cache.query_cache === "on" ? `Answers are kept for ${named}.` : `Answers are kept for ${named}, if the statement asks for it in a comment such as /* pgweir: cache */ (query_cache = hinted).`;
    }
    default:
      return "The cache is off. The statements below would gain most from it; set query_cache = on with a rule in [cache], or query_cache = coalesce, and RELOAD.";
  }
}

export interface Unserved {
  pool: string;
  why: string;
}

const REASONS: Record<string, string> = {
  "off: no rule": "no rule of [cache] names this database",
  "off: pool_mode=session": "pool_mode=session: pgweir does not know the settings of the clients' sessions",
  "off: session_state=pgbouncer": "session_state=pgbouncer: pgweir does not know the settings of the clients' sessions",
};

/** The pools whose clients are never answered from the cache, while it is on. */
export function unserved(cache: Cache): Unserved[] {
  if (cache.query_cache === "off") return [];
  return cache.pools.flatMap((pool) =>
    pool.states
      .filter((state) => state !== "on")
      .map((state) => ({ pool: pool.user === null ? pool.database : `${pool.database}, ${pool.user}`, why: REASONS[state] ?? state })),
  );
}

/** What stands in the way of the statement's answers being kept; `can` tells whether a setting alone changes it. */
export function obstacle(cache: string): { text: string; remedy: string | null; can: boolean } {
  switch (cache) {
    case "yes":
    case "yes, by key":
      return { text: "nothing", remedy: null, can: true };
    case "off":
      return { text: "the cache is off", remedy: "Set query_cache = on, with a rule in [cache] that matches it.", can: true };
    case "no rule":
      return { text: "no rule matches", remedy: "Add a rule to [cache] that matches it.", can: true };
    case "in a transaction":
      return { text: cache, remedy: "Read outside of transactions, or first in a READ COMMITTED one.", can: false };
    case "answer too long":
      return { text: cache, remedy: "Raise query_cache_max_answer, or ask for less.", can: false };
    case "changes are not followed, see SHOW CACHE":
      return { text: "changes are not followed", remedy: "The reason is above, at the followed databases.", can: false };
    case "session pooling":
      return { text: "pool_mode=session", remedy: "Use pool_mode = transaction.", can: false };
    default:
      return { text: cache, remedy: /^function .* may change data$/.test(cache) ? "If it is yours and only reads, declare it STABLE or list it in read_functions." : null, can: false };
  }
}

export interface Gain {
  statement: Statement;
  saved_us: number;
  /** The time at PostgreSQL that remains: the cache can save at most this. */
  left_us: number;
}

/**
 * The statements that gain most, or would: by the time that hits saved and the time at PostgreSQL that they might still save.
 * Statements that are no reads do not count, nor those that were executed once and never answered from the cache.
 */
export function gains(...lists: Statement[][]): Gain[] {
  const known = new Map<string, Statement>();
  for (const one of lists.flat()) known.set(JSON.stringify([one.fingerprint, one.database, one.user]), one);
  const reads = [...known.values()].filter(({ cache = "", cache_hits = 0, calls }) => (cache_hits > 0 || calls > 1) && !isNoRead(cache));
  return reads
    .map((statement) => ({ statement, saved_us: statement.cache_saved_us ?? 0, left_us: statement.server_us }))
    .sort((a, b) => b.saved_us + b.left_us - (a.saved_us + a.left_us))
    .slice(0, STATEMENTS_SHOWN);
}

function isNoRead(cache: string): boolean {
  return cache === "" || cache === "not a SELECT" || cache.startsWith("may change data");
}

/** The sum of the time that the cache could save at most by settings alone, in microseconds. */
export function reachable(gains: Gain[]): number {
  return gains.filter(({ statement }) => UNUSED.includes(statement.cache ?? "")).reduce((sum, { left_us }) => sum + left_us, 0);
}
