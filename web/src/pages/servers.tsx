// The connections to PostgreSQL, what each does, and why it does that.

import { get, type Choices, type Server } from "../api";
import { duration, span } from "../format";
import { useLive } from "../live";
import { useServices } from "../context";
import { Filters } from "../parts/filter";
import { Menu, type MenuItem } from "../parts/menu";
import { Badge, Fingerprint, Placeholder, Tls, Two } from "../parts/small";
import { Table, type ColumnOf } from "../parts/table";
import { href, type Route } from "../route";
import { age, asked, relaxed, rowChoices, Shown } from "./clients";

const STATES = {
  active: "busy", idle_in_transaction: "idle in transaction", idle: "ready", used: "ready, to be checked", tested: "being checked", login: "being opened", being_canceled: "held for a cancel", listening: "listens for notifications",
} as const;

interface Answer {
  time_s: number;
  total: number;
  choices: Choices;
  servers: Server[];
}

export function ServersPage({ route }: { route: Route }) {
  const { session } = useServices();
  const query = asked(route);
  const live = useLive<Answer>(`servers ${JSON.stringify(query)} ${session.role}`, relaxed, () => get("servers", query));
  return (
    <section aria-labelledby="servers">
      <h2 id="servers">Server connections</h2>
      <p class="hint">Each is a backend process of PostgreSQL; its process id is the one of pg_stat_activity.</p>
      <Filters route={route} choices={rowChoices(live.value?.choices, STATES, session.sees_names)} />
      {live.value ? (
        <>
          <Shown shown={live.value.servers.length} total={live.value.total} what="connection" />
          <Table
            label="Server connections"
            columns={columns(live.value.time_s, session.sees_names)}
            rows={live.value.servers}
            keyOf={(server) => server.id}
            none="No server connection matches. pgweir opens them when clients need them."
          />
        </>
      ) : (
        <Placeholder fault={live.fault}>Loading …</Placeholder>
      )}
    </section>
  );
}

function columns(now: number, names: boolean): ColumnOf<Server>[] {
  const to: ColumnOf<Server>[] = names
    ? [{ title: "For", hint: "the application, and the server's address", by: (server) => server.application_name ?? "", cell: (server) => <Two first={server.application_name || "–"} second={server.address} /> }]
    : [];
  const statement: ColumnOf<Server>[] = names
    ? [{ title: "Statement", hint: "the fingerprint of the statement that runs", by: (server) => server.statement ?? "", cell: (server) => (server.statement === null ? "–" : <Fingerprint of={server.statement} />) }]
    : [];
  return [
    { title: "Server", by: (server) => server.id, cell: (server) => server.id },
    {
      title: "State",
      head: true,
      by: (server) => server.state,
      cell: (server) => (
        <>
          <Badge tone={server.state}>{STATES[server.state]}</Badge>
          {server.close_needed && <Badge tone="attention">closes soon</Badge>}
        </>
      ),
    },
    { title: "Reason", long: true, cell: (server) => server.reason ?? "" },
    { title: "Runs for", num: true, hint: "how long its statement has run", by: (server) => server.active_us, cell: (server) => (server.active_us > 0 ? duration(server.active_us) : "–") },
    { title: "Transaction", num: true, hint: "the age of its transaction", by: (server) => server.transaction_us, cell: (server) => age(server.transaction_us, server.state === "idle_in_transaction") },
    ...statement,
    { title: "Client", num: true, hint: "the client that it works for", by: (server) => server.client_id ?? 0, cell: (server) => server.client_id ?? "–" },
    { title: "Database", hint: "and user", by: (server) => `${server.database} ${server.user}`, cell: (server) => <Two first={server.database} second={server.user} /> },
    ...to,
    { title: "Process", num: true, hint: "of PostgreSQL", by: (server) => server.backend_pid, cell: (server) => server.backend_pid },
    { title: "Open for", num: true, by: (server) => -server.since_s, cell: (server) => span(now - server.since_s) },
    { title: "Prepared", num: true, wide: true, hint: "prepared statements", by: (server) => server.prepared_statements, cell: (server) => server.prepared_statements },
    { title: "TLS", wide: true, cell: (server) => <Tls text={server.tls} /> },
    { title: "More", menu: true, cell: (server) => <Menu label={`More about server ${server.id}`} items={items(server)} /> },
  ];
}

function items({ database, user, statement }: Server): MenuItem[] {
  const found: MenuItem[] = [
    { text: `Database ${database}`, to: href("database", [database]) },
    { text: `Servers of database ${database}`, to: href("servers", [], { database }) },
  ];
  if (user !== null) found.push({ text: `Servers of user ${user}`, to: href("servers", [], { user }) });
  if (statement !== null) found.push({ text: "Its statement", to: href("statements", [], { find: statement }) });
  return found;
}
