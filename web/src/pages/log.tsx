// The log as it grows: the last lines, newest first.

import { useRef, useState } from "preact/hooks";

import { get, type LogLine } from "../api";
import { useLive } from "../live";
import { useServices } from "../context";
import { Filters, Find, matches } from "../parts/filter";
import { Badge, Placeholder } from "../parts/small";
import { Table, type ColumnOf } from "../parts/table";
import { clock, count, counted } from "../format";
import { followed, lastOf } from "../log";
import type { Route } from "../route";

const LEVELS: Record<string, string> = { notable: "warnings and errors", warning: "warning", error: "error", fatal: "fatal", log: "log" };
const TONES: Record<LogLine["level"], string> = { log: "", warning: "attention", error: "bad", fatal: "bad" };
/** Rows that are drawn; more of them are found by their words. */
const MOST_ROWS = 300;

const COLUMNS: ColumnOf<LogLine>[] = [
  { title: "Time", plain: true, cell: (line) => <time dateTime={new Date(line.time_s * 1000).toISOString()}>{clock(line.time_s)}</time> },
  { title: "Level", head: true, cell: (line) => <Badge tone={TONES[line.level]}>{line.level}</Badge> },
  { title: "Message", long: true, cell: (line) => line.message },
];

export function LogPage({ route }: { route: Route }) {
  const services = useServices();
  const [words, setWords] = useState("");
  const level = route.query.get("level");
  const kept = useRef<{ of: string; lines: LogLine[] }>({ of: "", lines: [] });
  const of = `log ${services.session.role}`;
  const live = useLive(of, 1_000, async () => {
    const before = kept.current.of === of ? kept.current.lines : [];
    const news = await get<{ lines: LogLine[] }>("log", { level: "log", after: lastOf(before) });
    kept.current = { of, lines: followed(before, news.lines) };
    return kept.current.lines;
  });
  const refused = live.fault?.status === 403 || live.fault?.status === 401;
  const fits = (line: LogLine) => level === null || (level === "notable" ? line.level !== "log" : line.level === level);
  const found = live.value?.filter((line) => fits(line) && matches(line.message, words)) ?? [];
  const shown = found.slice(0, MOST_ROWS);
  return (
    <section aria-labelledby="log">
      <h2 id="log">Log</h2>
      <p class="hint">The last lines as they are written, newest first. Hold keeps them still.</p>
      {live.value ? (
        <>
          <Filters route={route} choices={[{ word: "level", title: "Level", options: LEVELS }]}>
            <Find value={words} set={setWords} />
            <span class="hint">{shown.length < found.length ? `${count(shown.length)} of ${counted(found.length, "line")}` : counted(found.length, "line")}</span>
          </Filters>
          <Table label="Log" columns={COLUMNS} rows={shown} keyOf={(line) => line.id} none={live.value.length === 0 ? "Nothing has been logged." : "No line matches."} />
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
