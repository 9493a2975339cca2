// The connections to PostgreSQL, what each does, and why it does that.

import { get, type Server } from "../api";
import { duration, span } from "../format";
import { useLive } from "../live";
import { useDesk } from "../context";
import { Filter } from "../parts/filter";
import { Badge, Placeholder, Tls } from "../parts/small";
import { Table, type ColumnOf } from "../parts/table";
import type { Route } from "../route";
import { relaxed, Shown } from "./clients";

const STATES = { active: "busy", idle: "ready", used: "ready, to be checked", tested: "being checked", login: "being opened", being_canceled: "held for a cancel", listening: "listens for notifications" } as const;
const MOST = 200;

export function ServersPage({ route }: { route: Route }) {
  const { session } = useDesk();
  const query = { database: route.query.get("database"), user: route.query.get("user"), state: route.query.get("state"), limit: MOST };
  const live = useLive<{ time_s: number; total: number; servers: Server[] }>(`servers ${JSON.stringify(query)}`, relaxed, () => get("servers", query));
  return (
    <section aria-labelledby="servers">
      <h2 id="servers">Server connections</h2>
      <p class="hint">Each is a backend process of PostgreSQL; its process id is the one of pg_stat_activity.</p>
      <Filter route={route} choices={STATES} />
      {live.value ? (
        <>
          <Shown shown={live.value.servers.length} total={live.value.total} what="connection" />
          <Table
            label="Server connections"
            columns={columns(live.value.time_s, session.sees_names)}
            rows={live.value.servers}
            keyOf={(server) => server.id}
            none="No server connection like this. They are opened when clients need them."
          />
        </>
      ) : (
        <Placeholder fault={live.fault}>Asking …</Placeholder>
      )}
    </section>
  );
}

function columns(now: number, names: boolean): ColumnOf<Server>[] {
  const where: ColumnOf<Server>[] = names
    ? [
        { title: "User", by: (server) => server.user ?? "", cell: (server) => server.user ?? "–" },
        { title: "Address", wide: true, by: (server) => server.address ?? "", cell: (server) => server.address ?? "–" },
        { title: "Application", wide: true, by: (server) => server.application_name ?? "", cell: (server) => server.application_name || "–" },
      ]
    : [];
  return [
    { title: "Server", by: (server) => server.id, cell: (server) => server.id },
    {
      title: "State",
      by: (server) => server.state,
      cell: (server) => (
        <>
          <Badge tone={server.state}>{STATES[server.state]}</Badge>
          {server.close_needed && <Badge tone="attention">closes soon</Badge>}
        </>
      ),
    },
    { title: "Reason", long: true, cell: (server) => server.reason ?? "" },
    { title: "Statement runs", num: true, by: (server) => server.active_us, cell: (server) => (server.active_us > 0 ? duration(server.active_us) : "–") },
    { title: "Client", num: true, hint: "the client that it works for", by: (server) => server.client_id ?? 0, cell: (server) => server.client_id ?? "–" },
    { title: "Database", by: (server) => server.database, cell: (server) => server.database },
    ...where,
    { title: "Process", num: true, hint: "of PostgreSQL", by: (server) => server.backend_pid, cell: (server) => server.backend_pid },
    { title: "Open for", num: true, by: (server) => -server.since_s, cell: (server) => span(now - server.since_s) },
    { title: "Prepared", num: true, wide: true, hint: "prepared statements", by: (server) => server.prepared_statements, cell: (server) => server.prepared_statements },
    { title: "TLS", wide: true, cell: (server) => <Tls text={server.tls} /> },
  ];
}
