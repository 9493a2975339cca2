// Who is connected, what each does, and why it does that.

import { get, type Client } from "../api";
import { count, duration, span } from "../format";
import { useLive } from "../live";
import { useDesk } from "../context";
import { KillClient } from "../parts/actions";
import { Filter } from "../parts/filter";
import { Badge, Placeholder, Tls } from "../parts/small";
import { Table, type ColumnOf } from "../parts/table";
import type { Route } from "../route";

const STATES = { active: "working", waiting: "waiting", idle: "idle", login: "logging in", cancel: "cancelling" } as const;
const MOST = 200;

export function ClientsPage({ route }: { route: Route }) {
  const { session } = useDesk();
  const query = { database: route.query.get("database"), user: route.query.get("user"), state: route.query.get("state"), limit: MOST };
  const live = useLive<{ time_s: number; total: number; clients: Client[] }>(`clients ${JSON.stringify(query)}`, relaxed, () => get("clients", query));
  return (
    <section aria-labelledby="clients">
      <h2 id="clients">Clients</h2>
      <p class="hint">Those that have waited longest come first, then those that work.</p>
      <Filter route={route} choices={STATES} />
      {live.value ? (
        <>
          <Shown shown={live.value.clients.length} total={live.value.total} what="client" />
          <Table
            label="Clients"
            columns={columns(live.value.time_s, session.sees_names, session.may_act, live.again)}
            rows={live.value.clients}
            keyOf={(client) => client.id}
            none="No client like this."
          />
        </>
      ) : (
        <Placeholder fault={live.fault}>Asking …</Placeholder>
      )}
    </section>
  );
}

/** Many connections are work for the pooler to list: they are asked for less often. */
export function relaxed(answer: { total: number } | null): number {
  return (answer?.total ?? 0) > 1_000 ? 10_000 : 2_000;
}

export function Shown({ shown, total, what }: { shown: number; total: number; what: string }) {
  const plural = total === 1 ? what : `${what}s`;
  return <p class="hint">{shown < total ? `${count(shown)} of ${count(total)} ${plural}` : `${count(total)} ${plural}`}</p>;
}

function columns(now: number, names: boolean, acts: boolean, again: () => void): ColumnOf<Client>[] {
  const who: ColumnOf<Client>[] = names
    ? [
        { title: "User", by: (client) => client.user ?? "", cell: (client) => client.user ?? "–" },
        { title: "From", wide: true, by: (client) => client.address ?? "", cell: (client) => client.address ?? "–" },
        { title: "Application", wide: true, by: (client) => client.application_name ?? "", cell: (client) => client.application_name || "–" },
      ]
    : [];
  const last: ColumnOf<Client>[] = acts
    ? [{ title: "Action", cell: (client) => <KillClient id={client.id} who={`Client ${client.id} (${client.user ?? "?"} on ${client.database ?? "?"})`} again={again} /> }]
    : [];
  return [
    { title: "Client", by: (client) => client.id, cell: (client) => client.id },
    { title: "State", by: (client) => client.state, cell: (client) => <Badge tone={client.state}>{STATES[client.state]}</Badge> },
    { title: "Reason", long: true, cell: (client) => client.reason ?? "" },
    { title: "For", num: true, hint: "how long it has waited, or has been served", by: (client) => client.wait_us, cell: (client) => (client.wait_us > 0 ? duration(client.wait_us) : "–") },
    { title: "Database", by: (client) => client.database ?? "", cell: (client) => client.database ?? "–" },
    ...who,
    { title: "Connected", num: true, by: (client) => -client.since_s, cell: (client) => span(now - client.since_s) },
    { title: "Server", num: true, wide: true, hint: "the server connection that it has", by: (client) => client.server_id ?? 0, cell: (client) => client.server_id ?? "–" },
    { title: "Prepared", num: true, wide: true, hint: "prepared statements", by: (client) => client.prepared_statements, cell: (client) => client.prepared_statements },
    { title: "TLS", wide: true, cell: (client) => <Tls text={client.tls} /> },
    ...last,
  ];
}
