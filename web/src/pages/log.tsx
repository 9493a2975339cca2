// The last warnings and errors of the log.

import { useState } from "preact/hooks";

import { get, type LogLine } from "../api";
import { useLive } from "../live";
import { useServices } from "../context";
import { Filters, Find, matches } from "../parts/filter";
import { Badge, Placeholder } from "../parts/small";
import { Table, type ColumnOf } from "../parts/table";
import { clock, counted } from "../format";
import type { Route } from "../route";

const LEVELS = { warning: "warning", error: "error", fatal: "fatal" };

const COLUMNS: ColumnOf<LogLine>[] = [
  { title: "Time", plain: true, cell: (line) => <time dateTime={new Date(line.time_s * 1000).toISOString()}>{clock(line.time_s)}</time> },
  { title: "Level", head: true, cell: (line) => <Badge tone={line.level === "warning" ? "attention" : "bad"}>{line.level}</Badge> },
  { title: "Message", long: true, cell: (line) => line.message },
];

export function LogPage({ route }: { route: Route }) {
  const services = useServices();
  const [words, setWords] = useState("");
  const level = route.query.get("level");
  const live = useLive(`log ${services.session.role}`, 3_000, () => get<{ lines: LogLine[] }>("log"));
  const refused = live.fault?.status === 403 || live.fault?.status === 401;
  const shown = live.value?.lines.filter((line) => (level === null || line.level === level) && matches(line.message, words)) ?? [];
  return (
    <section aria-labelledby="log">
      <h2 id="log">Warnings and errors</h2>
      <p class="hint">The last of the log, newest first.</p>
      {live.value ? (
        <>
          <Filters route={route} choices={[{ word: "level", title: "Level", options: LEVELS }]}>
            <Find value={words} set={setWords} />
            <span class="hint" role="status">{counted(shown.length, "line")}</span>
          </Filters>
          <Table label="Log" columns={COLUMNS} rows={shown} keyOf={(line) => `${line.time_s} ${line.message}`} none={live.value.lines.length === 0 ? "No warnings and no errors." : "No line matches."} />
        </>
      ) : refused ? (
        <div class="none">
          <p>The log is shown to those who sign in.</p>
          {services.session.sign_in && services.session.role === "anonymous" && <p><button type="button" onClick={services.signIn}>Sign in</button></p>}
        </div>
      ) : (
        <Placeholder fault={live.fault}>Loading …</Placeholder>
      )}
    </section>
  );
}
