// Which statements the time goes to, and the last slow ones.

import { get, type SlowStatement, type Statement, type Statements } from "../api";
import { bytes, clock, count, duration, percent } from "../format";
import { useLive } from "../live";
import { useDesk } from "../context";
import { Filter } from "../parts/filter";
import { Badge, Placeholder, SplitBar } from "../parts/small";
import { Table, type ColumnOf } from "../parts/table";
import type { Route } from "../route";

const SORTS = {
  total_us: "time", server_us: "time at PostgreSQL", wait_us: "time in the queue", calls: "calls", mean_us: "mean", p99_us: "p99", max_us: "longest", rows: "rows", bytes: "bytes", errors: "errors",
} as const;
const MOST = 100;

export function StatementsPage({ route }: { route: Route }) {
  const desk = useDesk();
  const sort = route.query.get("sort") ?? "total_us";
  const query = { database: route.query.get("database"), sort, limit: MOST };
  const live = useLive(`statements ${JSON.stringify(query)} ${desk.session.role}`, 3_000, () => get<Statements>("statements", query));
  return (
    <>
      <section aria-labelledby="statements">
        <h2 id="statements">Statements</h2>
        <p class="hint">Literals are removed; statements that differ in nothing else are counted as one. Since the start.</p>
        <Filter route={route} word="sort" title="Most" choices={SORTS} any={null} />
        <Body live={live.value} fault={live.fault} sort={sort} signIn={desk.session.sign_in && desk.session.role === "anonymous" ? desk.signIn : null} />
      </section>
      {live.value && <Slow live={live.value} />}
    </>
  );
}

function Body({ live, fault, sort, signIn }: { live: Statements | null; fault: { status: number; message: string } | null; sort: string; signIn: (() => void) | null }) {
  if (!live && (fault?.status === 403 || fault?.status === 401)) {
    return (
      <div class="none">
        <p>Statements are shown to those who sign in.</p>
        {signIn && <p><button type="button" onClick={signIn}>Sign in</button></p>}
      </div>
    );
  }
  if (!live) return <Placeholder fault={fault}>Asking …</Placeholder>;
  if (!live.enabled) return <p class="none">Statements are not followed: the setting statement_stats_bytes is 0.</p>;
  const all = live.statements.reduce((total, statement) => total + statement.total_us, 0);
  const most = Math.max(1, ...live.statements.map((statement) => statement.total_us));
  return (
    <>
      <ul class="split-key">
        <li><i class="swatch area" style={{ "--swatch": "var(--wait)" }} aria-hidden="true" /> waiting for a connection</li>
        <li><i class="swatch area" style={{ "--swatch": "var(--work)" }} aria-hidden="true" /> PostgreSQL</li>
        <li><i class="swatch area" style={{ "--swatch": "var(--read)" }} aria-hidden="true" /> client reading</li>
      </ul>
      <Table key={sort} label="Statements" columns={columns(all, most)} rows={live.statements} keyOf={(one) => `${one.fingerprint} ${one.database} ${one.user}`} none="No statement yet." />
      <p class="hint">
        {count(live.tracked)} kept{live.forgotten > 0 && `; ${count(live.forgotten)} had to give place to others`}.
      </p>
    </>
  );
}

function columns(all: number, most: number): ColumnOf<Statement>[] {
  return [
    { title: "Statement", long: true, cell: (one) => <Text text={one.text} /> },
    { title: "Time", num: true, hint: "all of it, and its parts", by: (one) => one.total_us, cell: (one) => <SplitBar split={one} most={most} figure={duration(one.total_us)} /> },
    { title: "Share", num: true, hint: "of the time of all statements in this list", by: (one) => one.total_us, cell: (one) => percent(all > 0 ? one.total_us / all : 0) },
    { title: "Calls", num: true, by: (one) => one.calls, cell: (one) => count(one.calls) },
    { title: "Mean", num: true, by: (one) => one.mean_us, cell: (one) => duration(one.mean_us) },
    { title: "p50", num: true, by: (one) => one.p50_us, cell: (one) => duration(one.p50_us) },
    { title: "p95", num: true, by: (one) => one.p95_us, cell: (one) => duration(one.p95_us) },
    { title: "p99", num: true, by: (one) => one.p99_us, cell: (one) => duration(one.p99_us) },
    { title: "Longest", num: true, by: (one) => one.max_us, cell: (one) => duration(one.max_us) },
    { title: "Rows", num: true, by: (one) => one.rows, cell: (one) => count(one.rows) },
    { title: "Answers", num: true, hint: "bytes of the answers", by: (one) => one.bytes, cell: (one) => bytes(one.bytes) },
    { title: "Errors", num: true, by: (one) => one.errors, cell: (one) => <span class={one.errors > 0 ? "bad" : "quiet"}>{count(one.errors)}</span> },
    { title: "Database", by: (one) => one.database, cell: (one) => one.database },
    { title: "User", by: (one) => one.user ?? "", cell: (one) => one.user },
  ];
}

/** What took at least log_min_duration_ms. */
function Slow({ live }: { live: Statements }) {
  if (live.slow.length === 0 && live.slow_ms === null) {
    return (
      <section aria-labelledby="slow">
        <h2 id="slow">Slow statements</h2>
        <p class="hint">Set log_min_duration_ms, and the last ones that take so long are listed here and in the log.</p>
      </section>
    );
  }
  const most = Math.max(1, ...live.slow.map((one) => one.total_us));
  return (
    <section aria-labelledby="slow">
      <h2 id="slow">Slow statements</h2>
      <p class="hint">{live.slow_ms === null ? "The last ones" : `The last ones that took at least ${duration(live.slow_ms * 1_000)}`}, newest first. They stand in the log, too.</p>
      <Table label="Slow statements" columns={slowColumns(most)} rows={live.slow} keyOf={(one) => `${one.time_s} ${one.user} ${one.total_us}`} none="None yet." />
    </section>
  );
}

function slowColumns(most: number): ColumnOf<SlowStatement>[] {
  return [
    { title: "Time of day", cell: (one) => <time dateTime={new Date(one.time_s * 1000).toISOString()}>{clock(one.time_s)}</time> },
    { title: "Took", num: true, by: (one) => one.total_us, cell: (one) => <SplitBar split={one} most={most} figure={duration(one.total_us)} /> },
    { title: "Statement", long: true, cell: (one) => <>{one.failed && <Badge tone="bad">failed</Badge>} {one.text === null ? <span class="quiet">not known</span> : <Text text={one.text} />}</> },
    { title: "Rows", num: true, by: (one) => one.rows, cell: (one) => count(one.rows) },
    { title: "Answer", num: true, by: (one) => one.bytes, cell: (one) => bytes(one.bytes) },
    { title: "Database", by: (one) => one.database, cell: (one) => one.database },
    { title: "User", by: (one) => one.user, cell: (one) => one.user },
    { title: "Application", by: (one) => one.application_name, cell: (one) => one.application_name || <span class="quiet">–</span> },
  ];
}

function Text({ text }: { text: string }) {
  if (text.length <= 140) return <code class="sql">{text}</code>;
  return (
    <details class="sql-long">
      <summary><code class="sql">{text.slice(0, 120)} …</code></summary>
      <code class="sql">{text}</code>
    </details>
  );
}
