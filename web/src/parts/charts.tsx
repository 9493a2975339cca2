// The charts of the process, a database or a pool, all over the same time.

import type { ComponentChildren } from "preact";
import { useMemo } from "preact/hooks";

import type { Series } from "../api";
import { bytes, count, duration, rate } from "../format";
import { column, sum } from "../series";
import { Chart, type Line } from "./chart";
import type { Live } from "../live";
import { Placeholder, Segments } from "./small";

const WINDOWS: { seconds: number; label: string }[] = [
  { seconds: 60, label: "1 min" },
  { seconds: 300, label: "5 min" },
  { seconds: 900, label: "15 min" },
  { seconds: 3600, label: "1 h" },
];

interface Props {
  series: Series;
  windowS: number;
  /** Where the time axis ends, Unix time in seconds. */
  end: number;
}

interface OverTimeProps {
  series: Live<Series>;
  windowS: number;
  pick: (seconds: number) => void;
  end: number;
  /** What is said while nothing has been measured. */
  children: ComponentChildren;
}

/** All charts, with the choice of their window. */
export function OverTime({ series, windowS, pick, end, children }: OverTimeProps) {
  return (
    <section aria-labelledby="time">
      <div class="section-head">
        <h2 id="time">Over time</h2>
        <WindowPicker windowS={windowS} pick={pick} />
      </div>
      {series.value && series.value.time_s.length > 0 ? (
        <>
          <CrowdChart series={series.value} windowS={windowS} end={end} />
          <Charts series={series.value} windowS={windowS} end={end} />
        </>
      ) : (
        <Placeholder fault={series.fault}>{children}</Placeholder>
      )}
    </section>
  );
}

/** The picture of the articles: how many are connected, and how few connections serve them. */
function CrowdChart({ series, windowS, end }: Props) {
  const lines = useMemo<Line[]>(() => {
    const active = column(series, "clients_active");
    const waiting = column(series, "clients_waiting");
    const all = sum(active, waiting, column(series, "clients_idle"));
    const servers = sum(column(series, "servers_active"), column(series, "servers_idle"), column(series, "servers_login"));
    return [
      { label: "clients connected", colour: "idle", look: "area", values: all },
      { label: "waiting", colour: "waiting", look: "area", values: sum(active, waiting), figures: waiting },
      { label: "working", colour: "active", look: "area", values: active },
      { label: "server connections", colour: "server", look: "thick", values: servers },
    ];
  }, [series]);
  return (
    <Chart
      id="crowd"
      title="Many clients, few connections"
      hint="PostgreSQL sees the thick line only."
      times={series.time_s}
      lines={lines}
      format={count}
      windowS={windowS}
      end={end}
      height={210}
      atLeast={5}
    />
  );
}

/** The other charts. */
function Charts({ series, windowS, end }: Props) {
  const sets = useMemo(() => lineSets(series), [series]);
  const common = { times: series.time_s, windowS, end };
  return (
    <div class="charts">
      <Chart {...common} id="work" title="Transactions and statements" hint="Finished, per second." lines={sets.work} format={rate} atLeast={5} />
      <Chart {...common} id="split" title="Where the time goes" hint="An average statement, from asking to the last byte of its answer." lines={sets.split} format={duration} atLeast={100} />
      <Chart {...common} id="latency" title="How long statements take" hint="Half of them are faster than p50, all but one in a hundred faster than p99." lines={sets.latency} format={duration} atLeast={100} />
      <Chart {...common} id="queue" title="Waiting for a connection" hint="For how long the first in the queue had waited; and what 95 of 100 statements waited at most." lines={sets.queue} format={duration} atLeast={1000} />
      <Chart {...common} id="errors" title="Errors and logins" hint="Errors that clients were sent, by PostgreSQL or by the pooler, per second." lines={sets.errors} format={rate} atLeast={1} />
      <Chart {...common} id="traffic" title="Traffic" hint="Bytes per second." lines={sets.traffic} format={bytes} atLeast={1000} />
    </div>
  );
}

function lineSets(series: Series): Record<"work" | "split" | "latency" | "queue" | "errors" | "traffic", Line[]> {
  const of = (name: string) => column(series, name);
  const [wait, server, client] = [of("wait_mean_us"), of("server_mean_us"), of("client_mean_us")];
  return {
    work: [
      { label: "transactions", colour: "active", values: of("transactions") },
      { label: "statements", colour: "ink-3", look: "dashed", values: of("queries") },
    ],
    // Stacked: what is drawn last lies in front, and is the lowest.
    split: [
      { label: "waiting", colour: "wait", look: "area", values: sum(wait, server, client), figures: wait },
      { label: "client reading", colour: "read", look: "area", values: sum(server, client), figures: client },
      { label: "PostgreSQL", colour: "work", look: "area", values: server },
    ],
    latency: [
      { label: "p50", colour: "active", values: of("total_p50_us") },
      { label: "p95", colour: "pinned", values: of("total_p95_us") },
      { label: "p99", colour: "waiting", values: of("total_p99_us") },
    ],
    queue: [
      { label: "longest wait", colour: "waiting", look: "area", values: of("wait_oldest_us") },
      { label: "p95", colour: "pinned", values: of("wait_p95_us") },
    ],
    errors: [
      { label: "errors", colour: "error", values: of("errors") },
      { label: "logins", colour: "ink-3", look: "dashed", values: of("logins") },
    ],
    traffic: [
      { label: "from clients", colour: "active", values: of("received_bytes") },
      { label: "to clients", colour: "read", values: of("sent_bytes") },
    ],
  };
}

/** Which time the charts show. */
function WindowPicker({ windowS, pick }: { windowS: number; pick: (seconds: number) => void }) {
  const options = WINDOWS.map(({ seconds, label }) => ({ value: String(seconds), label }));
  return <Segments legend="Time shown" name="window" options={options} value={String(windowS)} pick={(value) => pick(Number(value))} />;
}
