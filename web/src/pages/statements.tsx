// Which statements the time goes to, and the last slow ones.

import { useState } from "preact/hooks";

import { get, type Database, type Statement, type Statements } from "../api";
import { bytes, clock, count, counted, duration, percent } from "../format";
import { useLive } from "../live";
import { useServices } from "../context";
import { Filters, Find, matches, plainly } from "../parts/filter";
import { Badge, Placeholder, SplitBar, Two } from "../parts/small";
import { Table, type ColumnOf } from "../parts/table";
import { requery, type Route } from "../route";
import { grouped, type SlowGroup } from "../slow";

const SORTS = {
  total_us: "time", server_us: "time at PostgreSQL", wait_us: "time in the queue", calls: "calls", mean_us: "mean", p99_us: "p99", max_us: "longest", rows: "rows", bytes: "bytes", errors: "errors",
} as const;
const MOST = 100;

export function StatementsPage({ route }: { route: Route }) {
  const services = useServices();
  const sort = route.query.get("sort") ?? "total_us";
  const query = { database: route.query.get("database"), sort, limit: MOST };
  const live = useLive<Statements>(`statements ${JSON.stringify(query)} ${services.session.role}`, 3_000, () => get<Statements>("statements", query));
  const databases = useLive("databases", 10_000, () => get<{ databases: Database[] }>("databases"));
  // A link leads to one statement, by its fingerprint.
  const linked = route.query.get("find") ?? "";
  const [words, setWords] = useState("");
  const find = linked || words;
  const search = (text: string) => {
    if (linked !== "") requery(route, { find: "" });
    setWords(text);
  };
  const refused = !live.value && (live.fault?.status === 403 || live.fault?.status === 401);
  return (
    <>
      <section aria-labelledby="statements">
        <h2 id="statements">Statements</h2>
        <p class="hint">Statements that differ only in their literals count as one, and literals are not shown. Since the start.</p>
        {!refused && (
          <Filters
            route={route}
            choices={[
              { word: "database", title: "Database", options: plainly(databases.value?.databases.map((one) => one.name)) },
              { word: "sort", title: "Most", options: SORTS, any: null },
            ]}
          >
            <Find value={find} set={search} label="Text or fingerprint" />
          </Filters>
        )}
        {refused ? <Refused /> : <Body live={live.value} fault={live.fault} sort={sort} find={find} />}
      </section>
      {live.value?.enabled && <Slow live={live.value} find={find} />}
    </>
  );
}

function Refused() {
  const { session, signIn } = useServices();
  return (
    <div class="none">
      <p>Statements are shown to those who sign in.</p>
      {session.sign_in && session.role === "anonymous" && <p><button type="button" onClick={signIn}>Sign in</button></p>}
    </div>
  );
}

function Body({ live, fault, sort, find }: { live: Statements | null; fault: { message: string } | null; sort: string; find: string }) {
  if (!live) return <Placeholder fault={fault}>Loading …</Placeholder>;
  if (!live.enabled) return <p class="none">pgweir does not follow statements: the setting statement_stats_bytes is 0.</p>;
  const all = live.statements.reduce((total, statement) => total + statement.total_us, 0);
  const shown = live.statements.filter((one) => matches(`${one.text} ${one.fingerprint}`, find));
  return (
    <>
      <ul class="split-key">
        <li><i class="swatch area" style={{ "--swatch": "var(--wait)" }} aria-hidden="true" /> waiting for a connection</li>
        <li><i class="swatch area" style={{ "--swatch": "var(--work)" }} aria-hidden="true" /> PostgreSQL</li>
        <li><i class="swatch area" style={{ "--swatch": "var(--read)" }} aria-hidden="true" /> client reading</li>
      </ul>
      <Table key={sort} label="Statements" columns={columns(all)} rows={shown} keyOf={(one) => `${one.fingerprint} ${one.database} ${one.user}`} none={find === "" ? "No statement yet." : "No statement matches. A statement is listed when it has been answered once."} />
      <p class="hint">
        {counted(live.tracked, "statement")} kept{live.forgotten > 0 && `; ${count(live.forgotten)} were dropped because memory (statement_stats_bytes) was full`}.
      </p>
    </>
  );
}

function columns(all: number): ColumnOf<Statement>[] {
  const share = (one: Statement) => (all > 0 ? one.total_us / all : 0);
  return [
    { title: "Statement", long: true, cell: (one) => <Text text={one.text}><More one={one} /></Text> },
    { title: "Time", num: true, hint: "all of it, its share of this list, and its parts", by: (one) => one.total_us, cell: (one) => <SplitBar split={one} figure={`${duration(one.total_us)}, ${percent(share(one))}`} /> },
    { title: "Calls", num: true, by: (one) => one.calls, cell: (one) => count(one.calls) },
    { title: "Mean", num: true, by: (one) => one.mean_us, cell: (one) => duration(one.mean_us) },
    { title: "p95", num: true, hint: "95 of 100 took at most this long", by: (one) => one.p95_us, cell: (one) => duration(one.p95_us) },
    { title: "p99", num: true, hint: "99 of 100 took at most this long", by: (one) => one.p99_us, cell: (one) => duration(one.p99_us) },
    { title: "Longest", num: true, by: (one) => one.max_us, cell: (one) => duration(one.max_us) },
    { title: "Rows", num: true, by: (one) => one.rows, cell: (one) => count(one.rows) },
    { title: "Errors", num: true, by: (one) => one.errors, cell: (one) => <span class={one.errors > 0 ? "bad" : "quiet"}>{count(one.errors)}</span> },
    { title: "Where", by: (one) => `${one.database} ${one.user}`, cell: (one) => <Two first={one.database} second={one.user} /> },
  ];
}

/** What is looked at for one statement only. */
function More({ one }: { one: Statement }) {
  return (
    <p class="hint">
      Fingerprint <code>{one.fingerprint}</code>, p50 {duration(one.p50_us)}, {bytes(one.bytes)} of answers, {duration(one.wait_us)} in the queue, {duration(one.server_us)} at PostgreSQL, {duration(one.client_us)} until the client read
    </p>
  );
}

/** What took at least log_min_duration_ms. */
function Slow({ live, find }: { live: Statements; find: string }) {
  if (live.slow.length === 0 && live.slow_ms === null) {
    return (
      <section aria-labelledby="slow">
        <h2 id="slow">Slow statements</h2>
        <p class="hint">Set log_min_duration_ms: statements that take at least that long are listed here and in the log.</p>
      </section>
    );
  }
  const groups = grouped(live.slow).filter((one) => matches(one.text ?? "", find));
  return (
    <section aria-labelledby="slow">
      <h2 id="slow">Slow statements</h2>
      <p class="hint">
        {live.slow_ms === null ? `The last ${count(live.slow.length)}` : `The last ${count(live.slow.length)} that took at least ${duration(live.slow_ms * 1_000)}`}, by statement. The log has each of them.
      </p>
      <Table label="Slow statements" columns={SLOW} rows={groups} keyOf={(one) => JSON.stringify([one.text, one.database, one.user])} none={find === "" ? "None yet." : "None matches."} />
    </section>
  );
}

const SLOW: ColumnOf<SlowGroup>[] = [
  { title: "Statement", long: true, cell: (one) => (one.text === null ? <span class="quiet">not known</span> : <Text text={one.text} />) },
  { title: "Times", num: true, by: (one) => one.count, cell: (one) => <>{one.failed > 0 && <Badge tone="bad">{count(one.failed)} failed</Badge>} {count(one.count)}</> },
  { title: "Longest", num: true, hint: "and its parts", by: (one) => one.worst.total_us, cell: (one) => <SplitBar split={one.worst} figure={duration(one.worst.total_us)} /> },
  { title: "Mean", num: true, by: (one) => one.mean_us, cell: (one) => duration(one.mean_us) },
  { title: "Last at", num: true, by: (one) => one.last_s, cell: (one) => <time dateTime={new Date(one.last_s * 1000).toISOString()}>{clock(one.last_s)}</time> },
  { title: "Where", by: (one) => `${one.database} ${one.user}`, cell: (one) => <Two first={one.database} second={one.user} /> },
  { title: "Applications", by: (one) => one.applications.join(", "), cell: (one) => one.applications.join(", ") || <span class="quiet">–</span> },
];

/** Two lines of a text; all of it, and `children`, when it is opened. */
function Text({ text, children }: { text: string; children?: preact.ComponentChildren }) {
  return (
    <details class="sql-text">
      <summary><code class="sql">{text}</code></summary>
      {children}
    </details>
  );
}
