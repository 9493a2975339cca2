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
  /** Which charts, beside that of clients and connections; all of them if not given. */
  charts?: ChartName[];
  /** What is said while nothing has been measured. */
  children: ComponentChildren;
}

/** Charts, with the choice of their window. */
export function OverTime({ series, windowS, pick, end, charts, children }: OverTimeProps) {
  return (
    <section aria-labelledby="time">
      <div class="section-head">
        <h2 id="time">Over time</h2>
        <WindowPicker windowS={windowS} pick={pick} />
      </div>
      {series.value && series.value.time_s.length > 0 ? (
        <>
          <CrowdChart series={series.value} windowS={windowS} end={end} />
          <Charts series={series.value} windowS={windowS} end={end} names={charts ?? CHARTS} />
        </>
      ) : (
        <Placeholder fault={series.fault}>{children}</Placeholder>
      )}
    </section>
  );
}

/** The number of clients that are connected, and the few connections that serve them. */
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
      hint="PostgreSQL sees only the thick line. Averages over a second."
      times={series.time_s}
      lines={lines}
      format={counted}
      windowS={windowS}
      end={end}
      height={210}
      atLeast={5}
    />
  );
}

const CHARTS = ["work", "split", "latency", "queue", "errors", "logins", "traffic"] as const;
type ChartName = (typeof CHARTS)[number];

interface Looks {
  title: string;
  hint: string;
  format: (value: number) => string;
  atLeast: number;
  log?: boolean;
}

const LOOKS: Record<ChartName, Looks> = {
  work: { title: "Transactions and statements", hint: "Finished, per second.", format: rate, atLeast: 5 },
  split: { title: "Where the time goes", hint: "An average statement, from the request to the last byte of its answer.", format: duration, atLeast: 100 },
  latency: { title: "How long statements take", hint: "Half take less than p50, 99 of 100 less than p99. Logarithmic.", format: duration, atLeast: 100, log: true },
  queue: { title: "Waiting for a connection", hint: "The longest wait, and what 95 of 100 statements waited at most.", format: duration, atLeast: 1000 },
  errors: { title: "Errors", hint: "Errors that clients were sent, by PostgreSQL or by pgweir, per second.", format: rate, atLeast: 1 },
  logins: { title: "Logins", hint: "Clients that logged in, per second.", format: rate, atLeast: 1 },
  traffic: { title: "Traffic", hint: "Bytes per second.", format: bytes, atLeast: 1000 },
};

/** The other charts. */
function Charts({ series, windowS, end, names }: Props & { names: readonly ChartName[] }) {
  const sets = useMemo(() => lineSets(series), [series]);
  return (
    <div class="charts">
      {names.map((name) => (
        <Chart key={name} id={name} {...LOOKS[name]} lines={sets[name]} times={series.time_s} windowS={windowS} end={end} />
      ))}
    </div>
  );
}

/** An average number of clients or connections: with a digit after the point where that matters. */
function counted(value: number): string {
  return value < 10 && !Number.isInteger(value) ? value.toFixed(1) : count(value);
}

function lineSets(series: Series): Record<ChartName, Line[]> {
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
    errors: [{ label: "errors", colour: "error", values: of("errors") }],
    logins: [{ label: "logins", colour: "active", values: of("logins") }],
    traffic: [
      { label: "from clients", colour: "active", values: of("received_bytes") },
      { label: "to clients", colour: "read", values: of("sent_bytes") },
    ],
  };
}

/** Which time the charts show. */
export function WindowPicker({ windowS, pick }: { windowS: number; pick: (seconds: number) => void }) {
  const options = WINDOWS.map(({ seconds, label }) => ({ value: String(seconds), label }));
  return <Segments legend="Time shown" name="window" options={options} value={String(windowS)} pick={(value) => pick(Number(value))} />;
}
