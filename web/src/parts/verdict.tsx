// The findings, each with its remedy; one green line if there is none.

import { useState } from "preact/hooks";

import type { Database, Overview, Pool } from "../api";
import { count, duration } from "../format";
import type { Route } from "../route";
import { findings, foundOn, lookAt, type Finding } from "../verdict";

/** Findings that are shown unless all are asked for. */
const FIRST = 4;

export function Verdict({ now, pools, databases }: { now: Overview; pools: Pool[]; databases: Database[] }) {
  const [all, setAll] = useState(false);
  const found = findings(now, pools, databases);
  if (found.length === 0) {
    return (
      <p class="verdict good" role="status">
        <b>No problems found.</b>
        {now.latency.wait && ` ${waits(now.latency.wait.mean_us)}`}
      </p>
    );
  }
  const shown = all ? found : found.slice(0, FIRST);
  return (
    <ul class="verdicts" aria-label="Findings">
      {shown.map((one) => (
        <Line key={one.text.replace(/\d+/g, "#")} finding={one} />
      ))}
      {shown.length < found.length && (
        <li>
          <button type="button" class="plain" onClick={() => setAll(true)}>Show all {count(found.length)} findings</button>
        </li>
      )}
    </ul>
  );
}

/** The findings that lead to a page, on that page. Nothing is shown if there are none. */
export function Found({ on, all }: { on: Pick<Route, "page" | "parts">; all: Finding[] }) {
  const found = foundOn(on, all);
  if (found.length === 0) return null;
  return (
    <ul class="verdicts here" aria-label="Findings">
      {found.map((one) => (
        <Line key={one.text.replace(/\d+/g, "#")} finding={one} isHere />
      ))}
    </ul>
  );
}

function waits(mean_us: number): string {
  if (mean_us < 1) return "Statements do not wait for a connection.";
  return `On average a statement waits ${duration(mean_us)} for a connection.`;
}

function Line({ finding, isHere = false }: { finding: Finding; isHere?: boolean }) {
  const more = isHere ? null : lookAt(finding);
  return (
    <li class={`verdict ${finding.tone}`}>
      <b>{finding.text}:</b> {finding.remedy}.
      {more && <> <a href={more.to}>Look at {more.name}</a></>}
    </li>
  );
}
