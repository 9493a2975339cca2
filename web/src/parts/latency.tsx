// Percentiles of the parts that a statement's time has.

import { useState } from "preact/hooks";

import { get, type Latency, type PercentileRow, type Quantiles } from "../api";
import { count, duration } from "../format";
import { useLive } from "../live";
import { Placeholder, Segments } from "./small";
import { Table, type ColumnOf } from "./table";

const NOW = "10";
const SPANS = [
  { value: NOW, label: "10 s" },
  { value: "", label: "since the start" },
];

interface Part {
  name: string;
  hint: string;
  spread: Quantiles | null;
}

/**
 * Of the process, of a database's only pool, or of a pool. `now` is that of the last ten seconds, which is known anyway: an
 * answer of the API has the rows of all pools, and is asked for only when another time is chosen.
 */
export function LatencyParts({ now, database, user }: { now: Latency | undefined; database?: string; user?: string }) {
  const [window, setWindow] = useState(NOW);
  return (
    <section aria-labelledby="parts">
      <div class="section-head">
        <h2 id="parts">Latency in parts</h2>
        <Segments legend="Time that is measured" name="span" options={SPANS} value={window} pick={setWindow} />
      </div>
      <p class="hint">
        Each part has its own percentiles, so those of the parts do not add up to those of the whole.
      </p>
      {window === NOW ? <Parts latency={now} /> : <Asked window={window} database={database} user={user} />}
    </section>
  );
}

function Asked({ window, database, user }: { window: string; database: string | undefined; user: string | undefined }) {
  const live = useLive(`percentiles ${window}`, 3_000, () => get<{ rows: PercentileRow[] }>("percentiles", { window }));
  if (!live.value) return <Placeholder fault={live.fault}>Loading …</Placeholder>;
  return <Parts latency={live.value.rows.find((one) => one.database === (database ?? null) && (user === undefined || one.user === user))?.latency} />;
}

function Parts({ latency }: { latency: Latency | undefined }) {
  if (!latency || latency.count === 0) return <p class="none">No statement ended in this time.</p>;
  return (
    <>
      <Table label="Latency in parts" columns={COLUMNS} rows={parts(latency)} keyOf={(part) => part.name} none="" grid />
      <p class="hint">{count(latency.count)} statements.</p>
    </>
  );
}

function parts(latency: Latency): Part[] {
  return [
    { name: "Statement", hint: "from the request to the last byte of its answer", spread: latency.total },
    { name: "waiting for a connection", hint: "in the queue, until a server was free", spread: latency.wait },
    { name: "PostgreSQL", hint: "from the first byte to the server until its answer was complete", spread: latency.server },
    { name: "client reading", hint: "the answer had to wait because the client did not read", spread: latency.client },
    { name: "Transaction", hint: "as long as a server was held", spread: latency.transaction },
  ];
}

const FIGURES: [string, keyof Quantiles][] = [["mean", "mean_us"], ["p50", "p50_us"], ["p90", "p90_us"], ["p95", "p95_us"], ["p99", "p99_us"], ["p99.9", "p999_us"], ["most", "max_us"]];

const COLUMNS: ColumnOf<Part>[] = [
  { title: "Part", cell: (part) => <span title={part.hint}>{part.name}</span> },
  ...FIGURES.map(([title, name]): ColumnOf<Part> => ({ title, num: true, cell: (part) => (part.spread ? duration(part.spread[name]) : "–") })),
];
