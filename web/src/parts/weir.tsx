// The picture of what a pooler is for: many clients on one side, few server connections on the other.

import type { ClientCounts, ServerCounts } from "../api";
import { count, counted } from "../format";
import { dotSize, marks, type Mark } from "./marks";

/** More marks than this are a texture, not a picture. */
const MOST_DOTS = 240;
const MOST_SLOTS = 60;

export function Weir({ clients, servers }: { clients: ClientCounts; servers: ServerCounts }) {
  const people = clients.total;
  const each = dotSize(people, MOST_DOTS);
  const capacity = Math.max(servers.limit, servers.total);
  const slot = dotSize(capacity, MOST_SLOTS);
  const pinned = clients.pinned ?? 0;
  const between = servers.tested + servers.login + servers.being_canceled;
  const room = servers.limit === 0 ? "" : `at most ${counted(servers.limit, "connection")}`;
  return (
    <div class="weir" aria-hidden="true">
      <div class="side crowd">
        <p class="side-title">
          <b>{count(people)}</b> {people === 1 ? "client" : "clients"}
        </p>
        <Marks
          kind="dot"
          each={each}
          states={[["active", clients.active - pinned], ["pinned", pinned], ["waiting", clients.waiting], ["idle", clients.idle + clients.login]]}
        />
        <p class="scale">{each > 1 ? `one dot is ${count(each)} clients` : ""}</p>
      </div>
      <div class="gate">
        <span>pgweir</span>
      </div>
      <div class="side few">
        <p class="side-title">
          <b>{count(servers.total)}</b> {servers.total === 1 ? "server connection" : "server connections"}
        </p>
        <Marks
          kind="slot"
          each={slot}
          states={[["active", servers.active], ["other", between], ["idle", servers.idle + servers.used], ["free", capacity - servers.total]]}
        />
        <p class="scale">{slot > 1 ? `one mark is ${count(slot)} connections; ${room}` : room}</p>
      </div>
    </div>
  );
}

function Marks({ kind, each, states }: { kind: "dot" | "slot"; each: number; states: [Mark, number][] }) {
  return (
    <div class={`marks ${kind}s`}>
      {marks(states, each).map((state, at) => (
        <i key={at} class={state} />
      ))}
    </div>
  );
}

/** What the marks' colours mean, with the figures; this is also what a screen reader is told. */
export function Key({ clients, servers }: { clients: ClientCounts; servers: ServerCounts }) {
  const pinned = clients.pinned ?? 0;
  return (
    <div class="keys">
      <dl aria-label="Clients">
        <Entry mark="dot active" term="working" hint="has a server connection right now" value={clients.active - pinned} />
        {pinned > 0 && <Entry mark="dot pinned" term="pinned" hint="keeps its server connection between transactions" value={pinned} />}
        <Entry mark="dot waiting" term="waiting" hint="wants a server connection, and none is free" value={clients.waiting} />
        <Entry mark="dot idle" term="idle" hint="connected, and wants nothing" value={clients.idle + clients.login} />
      </dl>
      <dl aria-label="Server connections">
        <Entry mark="slot active" term="busy" hint="works for a client" value={servers.active} />
        <Entry mark="slot idle" term="ready" hint="waits for the next client" value={servers.idle} />
        {servers.used > 0 && <Entry mark="slot idle" term="ready, to be checked" hint="not used for a while; is asked whether it lives before the next client gets it" value={servers.used} />}
        {servers.login + servers.tested + servers.being_canceled > 0 && (
          <Entry mark="slot other" term="in between" hint="being opened, checked, or held for a cancel request" value={servers.login + servers.tested + servers.being_canceled} />
        )}
      </dl>
    </div>
  );
}

function Entry({ mark, term, hint, value }: { mark: string; term: string; hint: string; value: number }) {
  return (
    <div title={hint}>
      <dt>
        <i class={`mark ${mark}`} aria-hidden="true" />
        {term}
        <span class="unseen">: {hint}</span>
      </dt>
      <dd>{count(value)}</dd>
    </div>
  );
}
