// The console's commands as buttons, for admins. Each says what it will do before it does it.

import type { ComponentChildren } from "preact";

import { act, type Action, type NodeAction } from "../api";
import { useServices, type Services } from "../context";
import type { Question } from "./dialog";

interface Meaning {
  verb: string;
  text: (where: string) => ComponentChildren;
  danger?: boolean;
}

const MEANINGS: Record<Exclude<Action, "kill_client" | "reload" | "recheck" | "switchover" | "cancel_switchover" | NodeAction>, Meaning> = {
  pause: {
    verb: "Pause",
    text: (where) => `Transactions that are open in ${where} end first; then its server connections are closed. Clients stay connected and wait until you resume.`,
  },
  resume: { verb: "Resume", text: (where) => `Clients of ${where} get server connections again.` },
  reconnect: {
    verb: "Reconnect",
    text: (where) => `Each server connection of ${where} is closed as soon as its transaction is over; pgweir opens new ones. Clients notice nothing.`,
  },
  disable: { verb: "Disable", text: (where) => `New clients of ${where} are refused. Those that are connected go on.` },
  enable: { verb: "Enable", text: (where) => `${where} takes new clients again.` },
  kill: {
    verb: "Kill",
    text: (where) => `All client and server connections of ${where} are dropped at once, in the middle of what they do, and it stays paused until you resume.`,
    danger: true,
  },
};

export function question(services: Services, action: keyof typeof MEANINGS, database?: string): Question {
  const { verb, text, danger = false } = MEANINGS[action];
  const where = database ?? "all databases";
  return {
    title: `${verb} ${where}?`,
    text: <p>{text(where)}</p>,
    verb,
    danger,
    run: async () => {
      const { done, message } = await act(action, database === undefined ? {} : { database }, services.session.csrf);
      return message ?? (done ? `${verb} ${where}: done` : `${verb} ${where}: goes on`);
    },
  };
}

/** The buttons of one database, or of all. */
export function Actions({ database, paused, disabled, again }: { database?: string; paused: boolean; disabled?: boolean; again: () => void }) {
  const services = useServices();
  if (!services.session.may_act) return null;
  const ask = (action: keyof typeof MEANINGS) => {
    const asked = question(services, action, database);
    services.ask({ ...asked, run: async () => { const told = await asked.run(); again(); return told; } });
  };
  return (
    <div class="actions" role="group" aria-label={database ? `Actions on ${database}` : "Actions on all databases"}>
      {database === undefined && <span>All databases</span>}
      {paused ? <button type="button" class="main" onClick={() => ask("resume")}>Resume</button> : <button type="button" onClick={() => ask("pause")}>Pause</button>}
      <button type="button" onClick={() => ask("reconnect")}>Reconnect</button>
      {database !== undefined && (disabled ? <button type="button" onClick={() => ask("enable")}>Enable</button> : <button type="button" onClick={() => ask("disable")}>Disable</button>)}
      {database !== undefined && <button type="button" class="danger" onClick={() => ask("kill")}>Kill</button>}
    </div>
  );
}

/** Reads the configuration files again. */
export function ReloadButton() {
  const services = useServices();
  if (!services.session.may_act) return null;
  const reload = () =>
    services.ask({
      title: "Reload the configuration?",
      text: <p>The files are read again. They are taken as a whole, or, if anything in them is wrong, not at all.</p>,
      verb: "Reload",
      run: async () => (await act("reload", {}, services.session.csrf)).message ?? "Reloaded",
    });
  return <button type="button" onClick={reload}>Reload</button>;
}

const NODE_MEANINGS: Record<NodeAction, Meaning> = {
  attach: { verb: "Attach", text: (where) => `${where} takes part again, as what it is.` },
  drain: { verb: "Drain", text: (where) => `${where} gets nothing new; what it runs goes on to its end. If it is the primary, clients wait until another node is.` },
  detach: { verb: "Detach", text: (where) => `${where} takes no part, as if it were not listed. It is still watched.` },
};

/** ATTACH, DRAIN or DETACH NODE. */
export function switchNode(services: Services, action: NodeAction, cluster: string, node: string, again: () => void): Question {
  const { verb, text } = NODE_MEANINGS[action];
  const where = `${cluster}.${node}`;
  return {
    title: `${verb} node ${where}?`,
    text: <p>{text(where)}</p>,
    verb,
    run: async () => {
      const { message } = await act(action, { cluster, node }, services.session.csrf);
      again();
      return message ?? `${verb} node ${where}: done`;
    },
  };
}

/** SWITCHOVER: makes a standby the primary. */
export function switchOver(services: Services, cluster: string, node: string, force: boolean, again: () => void): Question {
  return {
    title: force ? `Make ${node} the primary by force?` : `Make ${node} the primary of ${cluster}?`,
    text: (
      <p>
        New transactions of {cluster} wait until {node} is the primary; those that are open may end first.{" "}
        {force
          ? "Those that are still open after switchover_drain_ms are ended: their clients get an error, and their changes are rolled back."
          : "If some are still open after switchover_drain_ms, nothing is changed and clients go on."}{" "}
        With Patroni, Patroni switches over. Without it you stop the old primary and promote {node} when this page says so.
      </p>
    ),
    verb: force ? "End open transactions and switch over" : "Switch over",
    danger: force,
    run: async () => {
      const { done, message } = await act("switchover", { cluster, node, force }, services.session.csrf);
      again();
      return done ? `${node} is the primary` : `${message ?? "The switchover"}: under way`;
    },
  };
}

/** SWITCHOVER CANCEL. */
export function cancelSwitchover(services: Services, cluster: string, again: () => void): Question {
  return {
    title: `Cancel the switchover of ${cluster}?`,
    text: <p>Clients go on at once with the primary that there is. What Patroni has begun goes on.</p>,
    verb: "Cancel the switchover",
    run: async () => {
      const { message } = await act("cancel_switchover", { cluster }, services.session.csrf);
      again();
      return message ?? "The switchover is canceled";
    },
  };
}

/** RECHECK: forgets what is known of a cluster. */
export function RecheckButton({ cluster, again }: { cluster: string; again: () => void }) {
  const services = useServices();
  if (!services.session.may_act) return null;
  const recheck = () =>
    services.ask({
      title: `Recheck ${cluster}?`,
      text: <p>What is known of {cluster} is forgotten: system identifier, timeline, states. All its nodes are asked at once, and clients wait until one is known to be the primary. Use it after you have gone back to an older timeline on purpose.</p>,
      verb: "Recheck",
      run: async () => {
        const { message } = await act("recheck", { cluster }, services.session.csrf);
        again();
        return message ?? "All nodes are asked";
      },
    });
  return <button type="button" onClick={recheck}>Recheck</button>;
}

/** Drops one client. */
export function killClient(services: Services, id: number, who: string, again: () => void): Question {
  return {
    title: "Drop this client?",
    text: <p>{who} is disconnected at once. A transaction that it has open is rolled back.</p>,
    verb: "Drop client",
    danger: true,
    run: async () => {
      const { message } = await act("kill_client", { client: id }, services.session.csrf);
      again();
      return message ?? "The client is dropped";
    },
  };
}
