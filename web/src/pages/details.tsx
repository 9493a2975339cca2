// What the Overview leaves out: all charts, the parts of the latency, errors by kind, the process.

import type { ComponentChildren } from "preact";

import type { Overview } from "../api";
import { bytes, count, percent, rate, span } from "../format";
import { type Live, useSeries } from "../live";
import { OverTime } from "../parts/charts";
import { LatencyParts } from "../parts/latency";
import { Placeholder } from "../parts/small";
import { Found } from "../parts/verdict";
import { findings } from "../verdict";

interface Props {
  live: Live<Overview>;
  windowS: number;
  pick: (seconds: number) => void;
}

export function DetailsPage({ live, windowS, pick }: Props) {
  const series = useSeries(windowS);
  const now = live.value;
  if (!now) return <Placeholder fault={live.fault}>Loading …</Placeholder>;
  const end = series.value?.time_s.at(-1) ?? now.time_s;
  return (
    <>
      <Found on={{ page: "details", parts: [] }} all={findings(now, [], [])} />
      <OverTime series={series} windowS={windowS} pick={pick} end={end}>The first second is being measured …</OverTime>
      <LatencyParts now={now.latency} />
      <div class="pair">
        <Process now={now} />
        <Errors now={now} />
        {now.multiplexing && (
          <Figures
            id="multiplexing"
            title="Statement multiplexing"
            hint="Short statements of several clients share a server connection: each is queued on it after another client's."
            figures={now.multiplexing}
            words={MULTIPLEXING}
          />
        )}
        {now.sessions && (
          <Figures
            id="sessions"
            title="Sessions"
            hint="What a client sets follows it to the next server connection. What cannot move keeps the client on its connection."
            figures={now.sessions}
            words={SESSIONS}
          />
        )}
      </div>
    </>
  );
}

function Process({ now }: { now: Overview }) {
  const { process, workers, totals } = now;
  const busy = workers.map((worker) => percent(worker.busy)).join(", ");
  return (
    <section aria-labelledby="process">
      <h2 id="process">This process</h2>
      <dl class="facts">
        <Fact term="Version">{process.version}</Fact>
        <Fact term="Running for">{span(now.time_s - process.started_s)}</Fact>
        <Fact term={workers.length === 1 ? "Worker busy" : "Workers busy"}>{busy || "–"}</Fact>
        <Fact term="CPU cores in use">{process.cpu_share === null ? "–" : process.cpu_share.toFixed(2)}</Fact>
        <Fact term="Memory">{process.resident_bytes === null ? "–" : bytes(process.resident_bytes)}</Fact>
        <Fact term="Open files">{process.open_files === null ? "–" : `${count(process.open_files)} of ${process.open_files_max === null ? "?" : count(process.open_files_max)}`}</Fact>
        <Fact term="Clients at most">{count(process.max_client_conn)}</Fact>
        <Fact term="Transactions since the start">{count(totals.transactions)}</Fact>
        <Fact term="Logins per second">{rate(now.rates.logins)}</Fact>
      </dl>
    </section>
  );
}

function Fact({ term, children }: { term: string; children: ComponentChildren }) {
  return (
    <div>
      <dt>{term}</dt>
      <dd>{children}</dd>
    </div>
  );
}

/** Figures with words for their names; a name that is not known here is shown as it is. */
function Figures({ id, title, hint, figures, words }: { id: string; title: string; hint: string; figures: Record<string, number>; words: Record<string, string> }) {
  const known = Object.keys(words).filter((name) => name in figures);
  const others = Object.keys(figures).filter((name) => !(name in words));
  return (
    <section aria-labelledby={id}>
      <h2 id={id}>{title}</h2>
      <p class="hint">{hint}</p>
      <dl class="facts">
        {[...known, ...others].map((name) => (
          <Fact key={name} term={words[name] ?? name.replaceAll("_", " ")}>{count(figures[name] ?? 0)}</Fact>
        ))}
      </dl>
    </section>
  );
}

const MULTIPLEXING = {
  multiplexed_total: "Statements that shared a connection",
  requeued_total: "Of these, run again on another connection",
  violations_total: "Of these, did what they were not expected to do",
  multiplexed: "Clients with such a statement now",
  busy: "Connections busy with short statements now",
  target: "Connections meant for short statements",
};

const SESSIONS = {
  pinned: "Clients that keep their connection now",
  pins_total: "Clients that began to keep their connection",
  replays_total: "Sessions brought to another connection",
  audits_total: "Connections asked what a client left there",
  remembered_total: "Changes known without a question",
};

function Errors({ now }: { now: Overview }) {
  return (
    <section aria-labelledby="errors-title">
      <h2 id="errors-title">Errors since the start</h2>
      {now.errors.length === 0 ? (
        <p class="none">None. Errors that pgweir sends to clients are counted here by their kind.</p>
      ) : (
        <dl class="facts">
          {now.errors.slice(0, 9).map((kind) => (
            <Fact key={kind.class} term={`${kind.name} (${kind.class})`}>{count(kind.total)}</Fact>
          ))}
        </dl>
      )}
    </section>
  );
}
