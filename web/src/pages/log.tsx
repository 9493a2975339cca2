// The last warnings and errors of the log.

import { get, type LogLine } from "../api";
import { useLive } from "../live";
import { useDesk } from "../context";
import { Badge, Placeholder } from "../parts/small";
import { Table, type ColumnOf } from "../parts/table";
import { clock } from "../format";

const COLUMNS: ColumnOf<LogLine>[] = [
  { title: "Time", cell: (line) => <time dateTime={new Date(line.time_s * 1000).toISOString()}>{clock(line.time_s)}</time> },
  { title: "Level", cell: (line) => <Badge tone={line.level === "warning" ? "attention" : "bad"}>{line.level}</Badge> },
  { title: "Message", long: true, cell: (line) => line.message },
];

export function LogPage() {
  const desk = useDesk();
  const live = useLive(`log ${desk.session.role}`, 3_000, () => get<{ lines: LogLine[] }>("log"));
  const refused = live.fault?.status === 403 || live.fault?.status === 401;
  return (
    <section aria-labelledby="log">
      <h2 id="log">Warnings and errors</h2>
      <p class="hint">The last of the log, newest first.</p>
      {live.value ? (
        <Table label="Log" columns={COLUMNS} rows={live.value.lines} keyOf={(line) => `${line.time_s} ${line.message}`} none="None. That is good." />
      ) : refused ? (
        <div class="none">
          <p>The log is shown to those who sign in.</p>
          {desk.session.sign_in && desk.session.role === "anonymous" && <p><button type="button" onClick={desk.signIn}>Sign in</button></p>}
        </div>
      ) : (
        <Placeholder fault={live.fault}>Asking …</Placeholder>
      )}
    </section>
  );
}
