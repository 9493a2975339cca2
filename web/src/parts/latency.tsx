// Percentiles of the parts that a statement's time has.

import { useState } from "preact/hooks";

import { get, type Latency, type PercentileRow, type Quantiles } from "../api";
import { count, duration } from "../format";
import { useLive } from "../live";
import { Placeholder, Segments } from "./small";
import { Table, type ColumnOf } from "./table";

const SPANS = [
  { value: "10", label: "10 s" },
  { value: "60", label: "1 min" },
  { value: "300", label: "5 min" },
  { value: "", label: "since the start" },
];

interface Part {
  name: string;
  hint: string;
  spread: Quantiles | null;
}

/** Of the process, of a database's only pool, or of a pool. */
export function LatencyParts({ database, user }: { database?: string; user?: string }) {
  const [window, setWindow] = useState("10");
  const live = useLive(`percentiles ${window}`, 2_000, () => get<{ rows: PercentileRow[] }>("percentiles", { window }));
  const row = live.value?.rows.find((one) => one.database === (database ?? null) && (user === undefined || one.user === user));
  return (
    <section aria-labelledby="parts">
      <div class="section-head">
        <h2 id="parts">Latency in parts</h2>
        <Segments legend="Time that is measured" name="span" options={SPANS} value={window} pick={setWindow} />
      </div>
      <p class="hint">
        Each part has percentiles of its own, so those of the parts do not add up to those of the whole.
        {row && ` ${count(row.latency.count)} statements.`}
      </p>
      {row ? <Table label="Latency in parts" columns={COLUMNS} rows={parts(row.latency)} keyOf={(part) => part.name} none="" /> : <Placeholder fault={live.fault}>No statement in this time.</Placeholder>}
    </section>
  );
}

function parts(latency: Latency): Part[] {
  return [
    { name: "Statement", hint: "from asking to the last byte of the answer", spread: latency.total },
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
