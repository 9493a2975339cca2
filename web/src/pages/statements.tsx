// Which statements the servers' time goes to.

import { get, type Statements, type Statement } from "../api";
import { bytes, count, duration, percent } from "../format";
import { useLive } from "../live";
import { useDesk } from "../context";
import { Filter } from "../parts/filter";
import { Placeholder } from "../parts/small";
import { Table, type ColumnOf } from "../parts/table";
import type { Route } from "../route";

const SORTS = { total_us: "time at the servers", calls: "calls", mean_us: "mean", p99_us: "p99", wait_us: "time in the queue", rows: "rows", bytes: "bytes", errors: "errors" } as const;
const MOST = 100;

export function StatementsPage({ route }: { route: Route }) {
  const desk = useDesk();
  const sort = route.query.get("sort") ?? "total_us";
  const query = { database: route.query.get("database"), sort, limit: MOST };
  const live = useLive(`statements ${JSON.stringify(query)} ${desk.session.role}`, 3_000, () => get<Statements>("statements", query));
  return (
    <section aria-labelledby="statements">
      <h2 id="statements">Statements</h2>
      <p class="hint">Literals are removed; statements that differ in nothing else are counted as one. Since the start.</p>
      <Filter route={route} word="sort" title="Most" choices={SORTS} any={null} />
      <Body live={live.value} fault={live.fault} sort={sort} signIn={desk.session.sign_in && desk.session.role === "anonymous" ? desk.signIn : null} />
    </section>
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
  if (!live.enabled) return <p class="none">Statements are not tracked. The setting track_statements switches that on.</p>;
  const all = live.statements.reduce((total, statement) => total + statement.total_us, 0);
  return (
    <>
      <p class="hint">
        {count(live.tracked)} kept{live.forgotten > 0 && `; ${count(live.forgotten)} had to give place to others`}.
      </p>
      <Table key={sort} label="Statements" columns={columns(all)} rows={live.statements} keyOf={(one) => `${one.fingerprint} ${one.database} ${one.user}`} none="No statement yet." />
    </>
  );
}

function columns(all: number): ColumnOf<Statement>[] {
  return [
    { title: "Statement", long: true, cell: (one) => <Text text={one.text} /> },
    { title: "Share", num: true, hint: "of the time of all statements in this list", by: (one) => one.total_us, cell: (one) => percent(all > 0 ? one.total_us / all : 0) },
    { title: "Time", num: true, hint: "at the servers", by: (one) => one.total_us, cell: (one) => duration(one.total_us) },
    { title: "Calls", num: true, by: (one) => one.calls, cell: (one) => count(one.calls) },
    { title: "Mean", num: true, by: (one) => one.mean_us, cell: (one) => duration(one.mean_us) },
    { title: "p50", num: true, by: (one) => one.p50_us, cell: (one) => duration(one.p50_us) },
    { title: "p95", num: true, by: (one) => one.p95_us, cell: (one) => duration(one.p95_us) },
    { title: "p99", num: true, by: (one) => one.p99_us, cell: (one) => duration(one.p99_us) },
    { title: "Queue", num: true, hint: "time in the queue for a server", by: (one) => one.wait_us, cell: (one) => duration(one.wait_us) },
    { title: "Rows", num: true, by: (one) => one.rows, cell: (one) => count(one.rows) },
    { title: "Answers", num: true, hint: "bytes of the answers", by: (one) => one.bytes, cell: (one) => bytes(one.bytes) },
    { title: "Errors", num: true, by: (one) => one.errors, cell: (one) => <span class={one.errors > 0 ? "bad" : "quiet"}>{count(one.errors)}</span> },
    { title: "Database", by: (one) => one.database, cell: (one) => one.database },
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
