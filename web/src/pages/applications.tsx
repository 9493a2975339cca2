// The clients by application: which one holds the servers, and which one waits for them.

import { get, type Application } from "../api";
import { count, duration } from "../format";
import { useLive } from "../live";
import { useServices } from "../context";
import { Placeholder } from "../parts/small";
import { Table, type ColumnOf } from "../parts/table";
import { href } from "../route";
import { age, relaxed, Shown } from "./clients";

interface Answer {
  time_s: number;
  total: number;
  applications: Application[];
}

export function ApplicationsPage() {
  const { session, signIn } = useServices();
  const beat = (answer: Answer | null) => relaxed(answer && { total: answer.applications.reduce((sum, one) => sum + one.clients, 0) });
  const live = useLive<Answer>(`applications ${session.role}`, beat, () => get("applications"));
  const refused = live.fault?.status === 403 || live.fault?.status === 401;
  return (
    <section aria-labelledby="applications">
      <h2 id="applications">Applications</h2>
      <p class="hint">Clients by their application_name: who holds server connections, and who waits for them.</p>
      {live.value ? (
        <>
          <Shown shown={live.value.applications.length} total={live.value.total} what="application" />
          <Table label="Applications" columns={COLUMNS} rows={live.value.applications} keyOf={(one) => one.name} none="No client is connected." />
        </>
      ) : refused ? (
        <div class="none">
          <p>Applications are shown to those who sign in.</p>
          {session.sign_in && session.role === "anonymous" && <p><button type="button" onClick={signIn}>Sign in</button></p>}
        </div>
      ) : (
        <Placeholder fault={live.fault}>Loading …</Placeholder>
      )}
    </section>
  );
}

const COLUMNS: ColumnOf<Application>[] = [
  { title: "Application", by: (one) => one.name, cell: (one) => (one.name === "" ? <span class="quiet">no name</span> : <a href={href("clients", [], { application_name: one.name })}>{one.name}</a>) },
  { title: "Clients", num: true, by: (one) => one.clients, cell: (one) => count(one.clients) },
  { title: "Working", num: true, hint: "have a server connection and use it", by: (one) => one.active, cell: (one) => count(one.active) },
  { title: "Idle in transaction", num: true, hint: "have a server connection and send nothing", by: (one) => one.idle_in_transaction, cell: (one) => alarming(one.idle_in_transaction) },
  { title: "Pinned", num: true, wide: true, hint: "keep their server connection between transactions", by: (one) => one.pinned, cell: (one) => count(one.pinned) },
  { title: "Waiting", num: true, hint: "want a server connection, and none is free", by: (one) => one.waiting, cell: (one) => alarming(one.waiting) },
  { title: "Idle", num: true, hint: "connected, and want nothing", by: (one) => one.idle, cell: (one) => count(one.idle) },
  { title: "Longest wait", num: true, by: (one) => one.wait_oldest_us, cell: (one) => (one.wait_oldest_us > 0 ? duration(one.wait_oldest_us) : "–") },
  { title: "Oldest transaction", num: true, by: (one) => one.transaction_oldest_us, cell: (one) => age(one.transaction_oldest_us, one.idle_in_transaction > 0) },
  { title: "Databases", long: true, cell: (one) => one.databases.join(", ") },
  { title: "Users", long: true, cell: (one) => one.users.join(", ") },
];

/** A number that deserves a look if there are any. */
function alarming(value: number) {
  return <span class={value > 0 ? "attention" : ""}>{count(value)}</span>;
}
