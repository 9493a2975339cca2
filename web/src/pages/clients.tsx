// The clients: what each does, and why it does that.

import type { ComponentChildren } from "preact";

import { get, type Choices, type Client, type Overview } from "../api";
import { count, duration, span } from "../format";
import { type Live, useLive } from "../live";
import { useServices, type Services } from "../context";
import { killClient } from "../parts/actions";
import { Filters, plainly, type Choice } from "../parts/filter";
import { Menu, type MenuItem } from "../parts/menu";
import { Badge, Fingerprint, Placeholder, Tls, Two } from "../parts/small";
import { Table, type ColumnOf } from "../parts/table";
import { Found } from "../parts/verdict";
import { href, type Route } from "../route";
import { findings } from "../verdict";

const STATES = { active: "working", idle_in_transaction: "idle in transaction", waiting: "waiting", idle: "idle", login: "logging in", cancel: "cancelling" } as const;
const MOST = 200;

interface Answer {
  time_s: number;
  total: number;
  choices: Choices;
  clients: Client[];
}

export function ClientsPage({ live: overview, route }: { live: Live<Overview>; route: Route }) {
  const services = useServices();
  const query = asked(route);
  const live = useLive<Answer>(`clients ${JSON.stringify(query)} ${services.session.role}`, relaxed, () => get("clients", query));
  return (
    <section aria-labelledby="clients">
      <h2 id="clients">Clients</h2>
      {overview.value && <Found on={route} all={findings(overview.value, [], [])} />}
      <p class="hint">Clients that have waited longest come first, then those that have a server connection.</p>
      <Filters route={route} choices={rowChoices(live.value?.choices, STATES, services.session.sees_names)} />
      {live.value ? (
        <>
          <Shown shown={live.value.clients.length} total={live.value.total} what="client" />
          <Table
            label="Clients"
            columns={columns(live.value.time_s, services, live.again)}
            rows={live.value.clients}
            keyOf={(client) => client.id}
            none="No client matches."
          />
        </>
      ) : (
        <Placeholder fault={live.fault}>Loading …</Placeholder>
      )}
    </section>
  );
}

/** What the address asks of a list of clients or servers. */
export function asked(route: Route): Record<string, string | number | null> {
  const words = ["database", "user", "application_name", "state"];
  return { ...Object.fromEntries(words.map((word) => [word, route.query.get(word)])), limit: MOST };
}

/** By what clients and servers can be chosen; readers that see no names choose by database and state. */
export function rowChoices(choices: Choices | undefined, states: Record<string, string>, names: boolean): Choice[] {
  const who: Choice[] = names
    ? [
        { word: "user", title: "User", options: plainly(choices?.user) },
        { word: "application_name", title: "Application", options: plainly(choices?.application_name) },
      ]
    : [];
  return [{ word: "database", title: "Database", options: plainly(choices?.database) }, ...who, { word: "state", title: "State", options: states }];
}

/** Many connections are work for the pooler to list: they are asked for less often. */
export function relaxed(answer: { total: number } | null): number {
  return (answer?.total ?? 0) > 1_000 ? 10_000 : 2_000;
}

export function Shown({ shown, total, what }: { shown: number; total: number; what: string }) {
  const plural = total === 1 ? what : `${what}s`;
  return <p class="hint">{shown < total ? `${count(shown)} of ${count(total)} ${plural}` : `${count(total)} ${plural}`}</p>;
}

function columns(now: number, services: Services, again: () => void): ColumnOf<Client>[] {
  const { sees_names: names } = services.session;
  const from: ColumnOf<Client>[] = names
    ? [{ title: "From", hint: "application and address", by: (client) => client.application_name ?? "", cell: (client) => <Two first={client.application_name || "–"} second={client.address} /> }]
    : [];
  const statement: ColumnOf<Client>[] = names
    ? [{ title: "Statement", hint: "the fingerprint of the statement that runs", by: (client) => client.statement ?? "", cell: (client) => (client.statement === null ? "–" : <Fingerprint of={client.statement} />) }]
    : [];
  return [
    { title: "Client", by: (client) => client.id, cell: (client) => client.id },
    { title: "State", head: true, by: (client) => client.state, cell: (client) => <Badge tone={client.state}>{STATES[client.state]}</Badge> },
    { title: "Reason", long: true, cell: reason },
    { title: "For", num: true, hint: "how long it has waited, or has been served", by: (client) => client.wait_us, cell: (client) => (client.wait_us > 0 ? duration(client.wait_us) : "–") },
    { title: "Transaction", num: true, hint: "the age of its transaction", by: (client) => client.transaction_us, cell: (client) => age(client.transaction_us, client.state === "idle_in_transaction") },
    ...statement,
    { title: "Database", hint: "and user", by: (client) => `${client.database} ${client.user}`, cell: (client) => <Two first={client.database ?? "–"} second={client.user} /> },
    ...from,
    { title: "Connected", num: true, by: (client) => -client.since_s, cell: (client) => span(now - client.since_s) },
    { title: "Server", num: true, hint: "the server connection that it has", by: (client) => client.server_id ?? 0, cell: (client) => client.server_id ?? "–" },
    { title: "Prepared", num: true, wide: true, hint: "prepared statements", by: (client) => client.prepared_statements, cell: (client) => client.prepared_statements },
    { title: "TLS", wide: true, cell: (client) => <Tls text={client.tls} /> },
    { title: "More", menu: true, cell: (client) => <Menu label={`More about client ${client.id}`} items={items(client, services, again)} /> },
  ];
}

/** The state says it already. */
function reason(client: Client): string {
  return client.state === "idle_in_transaction" && !client.reason?.startsWith("keeps") ? "" : (client.reason ?? "");
}

/** The age of a transaction; it stands out when nothing happens in it. */
export function age(us: number, idle: boolean): ComponentChildren {
  return us === 0 ? "–" : <span class={idle ? "attention" : ""}>{duration(us)}</span>;
}

function items(client: Client, services: Services, again: () => void): MenuItem[] {
  const { database, user, application_name: application } = client;
  const found: MenuItem[] = [];
  if (database !== null && database !== "pgbouncer") found.push({ text: `Database ${database}`, to: href("database", [database]) });
  if (user !== null) found.push({ text: `Clients of user ${user}`, to: href("clients", [], { user }) });
  if (application) found.push({ text: `Clients of application ${application}`, to: href("clients", [], { application_name: application }) });
  if (client.statement !== null) found.push({ text: "Its statement", to: href("statements", [], { find: client.statement }) });
  if (services.session.may_act) {
    const who = `Client ${client.id} (${user ?? "?"} on ${database ?? "?"})`;
    found.push({ text: "Drop client …", danger: true, run: () => services.ask(killClient(services, client.id, who, again)) });
  }
  return found;
}
