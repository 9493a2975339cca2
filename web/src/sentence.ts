// What happens right now, in sentences that need no knowledge of poolers.

import type { Overview } from "./api";
import { count, counted, duration } from "./format";

export interface Said {
  text: string;
  tone: "calm" | "attention" | "quiet";
}

/** A shorter wait is a transaction's length, not a queue that anybody would notice. */
const NOTICEABLE_US = 500_000;

type Moment = Pick<Overview, "clients" | "servers" | "queue"> & { process: Pick<Overview["process"], "state" | "paused_databases"> };

export function sentences(now: Moment): Said[] {
  return [crowd(now), queue(now)].filter((said) => said !== null);
}

function crowd({ clients, servers }: Moment): Said {
  const links = counted(servers.total, "server connection");
  if (clients.total === 0) {
    if (servers.total === 0) return { text: "Nobody is connected.", tone: "quiet" };
    return { text: `Nobody is connected; ${links} ${servers.total === 1 ? "is" : "are"} kept ready.`, tone: "quiet" };
  }
  const people = counted(clients.total, "client");
  if (servers.total === 0 && clients.waiting > 0) return { text: `${people}, and no server connection is open.`, tone: "attention" };
  if (servers.total === 0) return { text: `${people}, and no server connection is needed.`, tone: "calm" };
  return { text: `${people} ${clients.total === 1 ? "uses" : "share"} ${links}.`, tone: "calm" };
}

function queue({ clients, queue, process }: Moment): Said | null {
  if (process.state === "paused") return { text: "Everything is paused: clients wait until it is resumed.", tone: "attention" };
  if (process.state === "suspended") return { text: "Suspended: nothing is read from clients or servers.", tone: "attention" };
  if (process.state === "stopping") return { text: "Shutting down.", tone: "attention" };
  const paused = process.paused_databases;
  if (paused.length > 0) {
    const names = paused.length > 3 ? `${count(paused.length)} databases are` : `${paused.join(", ")} ${paused.length === 1 ? "is" : "are"}`;
    return { text: `${names} paused: clients wait until that is resumed.`, tone: "attention" };
  }
  if (queue.waiting > 0) {
    const who = queue.waiting === 1 ? "One waits" : `${count(queue.waiting)} wait`;
    const longest = queue.waiting === 1 ? `since ${duration(queue.wait_oldest_us)}` : `the longest for ${duration(queue.wait_oldest_us)}`;
    return { text: `${who} for a free one, ${longest}.`, tone: queue.wait_oldest_us >= NOTICEABLE_US ? "attention" : "calm" };
  }
  return clients.total > 0 ? { text: "Nobody waits right now.", tone: "calm" } : null;
}
