// What the clusters' page says of nodes, in words and in lengths of time.

import type { Cluster, ClusterChange, ClusterNode, NodeState } from "./api";
import { bytes, count, counted, duration, percent } from "./format";

/** A stretch of time in which a node was in one state; null while it was not there. */
export interface Stretch {
  from: number;
  to: number;
  state: NodeState | null;
}

/** The states of a node between two times, the oldest first. `changes` come newest first. */
export function stretches(changes: ClusterChange[], cluster: string, node: ClusterNode, from: number, to: number): Stretch[] {
  const found: Stretch[] = [];
  let state: NodeState | null = node.state;
  let end = to;
  for (const change of changes) {
    if (end <= from) break;
    if (change.kind !== "state" || change.cluster !== cluster || change.node !== node.name) continue;
    const begin = Math.min(Math.max(change.time_s, from), end);
    if (begin < end) found.push({ from: begin, to: end, state });
    state = change.from;
    end = begin;
  }
  if (end > from && state !== null) found.push({ from, to: end, state });
  return found.reverse();
}

/** When epochs began: the cluster's primary changed, or was restarted. The same primary may come back without that. */
export function epochs(changes: ClusterChange[], cluster: string, from: number): number[] {
  const found = changes.flatMap((change) => (change.kind === "primary" && change.cluster === cluster ? [change] : []));
  return found.filter((change, at) => change.time_s > from && change.epoch !== found[at + 1]?.epoch).map((change) => change.time_s);
}

export function told(change: ClusterChange): string {
  switch (change.kind) {
    case "state":
      if (change.to === null) return `${change.node} is no longer a node`;
      if (change.from === null) return change.to === "unknown" ? `${change.node} is watched` : `${change.node} is ${change.to}`;
      return `${change.node} is ${change.to}, was ${change.from}`;
    case "switch":
      return `${change.node} is ${change.to}`;
    case "primary":
      return `${change.node} is the primary, in epoch ${change.epoch}`;
    case "held":
      return "no primary: clients wait";
  }
}

/** Reads of each node at a time; of a version that does not count them, none. */
export interface Count {
  at: number;
  reads: Map<string, number>;
}

export function reads({ nodes }: Cluster, at: number): Count {
  return { at, reads: new Map(nodes.flatMap(({ name, reads: count }) => (count == null ? [] : [[name, count] as const]))) };
}

/** The share of the reads that each standby is to have; empty in a version that does not tell it. */
export function intended({ nodes }: Cluster): Map<string, number> {
  const usable = nodes.flatMap((node) => (node.state === "standby" && node.switch === "attached" && node.share ? [[node.name, node.share] as const] : []));
  const all = usable.reduce((sum, [, share]) => sum + share, 0);
  return new Map(usable.map(([name, share]) => [name, share / all]));
}

/** The share of the reads between two counts that each node had; empty if there were none. */
export function shares(before: Count, now: Count): Map<string, number> {
  const lately = [...now.reads].map(([node, count]) => [node, Math.max(0, count - (before.reads.get(node) ?? count))] as const);
  const all = lately.reduce((sum, [, count]) => sum + count, 0);
  return new Map(all > 0 ? lately.map(([node, count]) => [node, count / all]) : []);
}

/** What the node does for clients. */
export interface Work {
  /** All of it, reads alone, the rest of what it had, or nothing. */
  kind: "all" | "reads" | "rest" | "none";
  text: string;
}

export function work(cluster: Cluster, node: ClusterNode, share: number | undefined): Work {
  const isPrimary = cluster.state === "available" && cluster.primary === node.name;
  if (node.switch === "detached") return { kind: "none", text: "detached: no work" };
  if (node.switch === "draining") return { kind: "rest", text: "nothing new" };
  const part = share === undefined ? null : `${percent(share)} of reads`;
  if (isPrimary) return { kind: "all", text: part === null ? "all statements" : `changes, ${part}` };
  if (node.state === "standby" && node.share === 0) return { kind: "none", text: "too far behind" };
  if (node.state === "standby") return { kind: "reads", text: part ?? "reads" };
  return { kind: "none", text: "no work" };
}

/** "1.2 MB, 40 ms behind"; null of a node that follows none. */
export function lag({ lag_bytes, lag_ms }: ClusterNode): string | null {
  const parts = [];
  if (lag_bytes != null) parts.push(bytes(lag_bytes));
  if (lag_ms != null) parts.push(duration(lag_ms * 1000));
  if (parts.length === 0) return null;
  return (lag_bytes ?? 0) === 0 && (lag_ms ?? 0) === 0 ? "not behind" : `${parts.join(", ")} behind`;
}

/** Pixels of the picture of nodes up to the lag of a standby, of that lag's letters at most, and of the picture without one. */
const LAG_FROM = 816;
const LETTER = 8;
const PICTURE_LEAST = 960;

/** The width of the picture of nodes, which holds each standby's lag: "1.25 GB, 12 min 30 s behind" is longer than most. */
export function pictureWidth(nodes: ClusterNode[]): number {
  const letters = Math.max(0, ...nodes.map((node) => lag(node)?.length ?? 0));
  return Math.max(PICTURE_LEAST, LAG_FROM + letters * LETTER);
}

/** The node that could be made the primary by force: pgweir offers it when transactions stayed open. */
export function forcible({ name, switchover, switchover_error }: Cluster): string | null {
  if (switchover != null || switchover_error == null) return null;
  const offer = /SWITCHOVER (\S+) TO (\S+) FORCE/.exec(switchover_error);
  return offer?.[1] === name ? (offer[2] ?? null) : null;
}

/** Reads that the primary got in place of a standby, and why; null if there were none. */
export function fellBack({ fell_back_no_standby, fell_back_lag }: Cluster): string | null {
  const parts = [];
  if (fell_back_no_standby) parts.push(`${count(fell_back_no_standby)} as no standby took reads`);
  if (fell_back_lag) parts.push(`${count(fell_back_lag)} as every standby was too far behind`);
  return parts.length === 0 ? null : `Reads that went to the primary instead of a standby: ${parts.join(", ")}.`;
}

/** What clients were told whose primary was lost after they had sent COMMIT; null if there were none. */
export function outcomes({ resolving, outcomes_committed, outcomes_rolled_back, outcomes_unknown }: Cluster): string | null {
  const told = [
    [outcomes_committed, "committed"],
    [outcomes_rolled_back, "rolled back"],
    [outcomes_unknown, "not known"],
  ] as const;
  const parts = told.flatMap(([clients, what]) => (clients ? [`${count(clients)} ${what}`] : []));
  if (resolving) parts.push(`${counted(resolving, "client")} ${resolving === 1 ? "waits" : "wait"} for it`);
  return parts.length === 0 ? null : `Outcome of COMMIT where the primary was lost: ${parts.join(", ")}.`;
}

/** Standbys lie below the primary; else nodes keep their order. */
export function ordered({ nodes, primary }: Cluster): ClusterNode[] {
  return [...nodes.filter((node) => node.name === primary), ...nodes.filter((node) => node.name !== primary)];
}

export function address({ host, port }: ClusterNode): string | null {
  if (host === null) return null;
  return host.includes(":") ? `[${host}]:${port}` : `${host}:${port}`;
}

/** The colour of a state, as a class. */
export function tone(state: NodeState | null): string {
  switch (state) {
    case "primary": return "primary";
    case "standby": return "standby";
    case "down": case "refused": return "bad";
    case "unsure": case "starting": return "attention";
    default: return "unknown";
  }
}
