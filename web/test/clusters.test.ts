import { expect, test } from "vitest";

import type { Cluster, ClusterChange, ClusterNode } from "../src/api";
import { epochs, fellBack, forcible, intended, lag, outcomes, ordered, pictureWidth, reads, shares, stretches, told, work } from "../src/clusters";

function node(name: string, more: Partial<ClusterNode> = {}): ClusterNode {
  return { name, host: null, port: 5432, role: "standby", state: "standby", state_since_s: null, switch: "attached", timeline: 1, position: "0/3000148", lag_bytes: 0, last_check_s: null, last_error: null, ...more };
}

function cluster(nodes: ClusterNode[], more: Partial<Cluster> = {}): Cluster {
  return { name: "main", state: "available", primary: "m1", epoch: 1, timeline: 1, held_clients: 0, held_since_s: null, reason: null, databases: ["app"], nodes, ...more };
}

const CHANGES: ClusterChange[] = [
  { time_s: 50, cluster: "main", kind: "primary", node: "m2", epoch: 2 },
  { time_s: 50, cluster: "main", kind: "state", node: "m2", from: "standby", to: "primary", error: null },
  { time_s: 40, cluster: "main", kind: "held" },
  { time_s: 40, cluster: "main", kind: "state", node: "m1", from: "primary", to: "down", error: "refused" },
  { time_s: 30, cluster: "main", kind: "switch", node: "m3", to: "draining" },
  { time_s: 10, cluster: "main", kind: "primary", node: "m1", epoch: 1 },
  { time_s: 10, cluster: "main", kind: "state", node: "m2", from: null, to: "standby", error: null },
];

test("a node's states fill the time since it was known", () => {
  const m2 = node("m2", { state: "primary" });
  expect(stretches(CHANGES, "main", m2, 0, 60)).toEqual([{ from: 10, to: 50, state: "standby" }, { from: 50, to: 60, state: "primary" }]);
  expect(stretches(CHANGES, "main", m2, 45, 60)).toEqual([{ from: 45, to: 50, state: "standby" }, { from: 50, to: 60, state: "primary" }]);
  expect(stretches(CHANGES, "main", m2, 55, 60)).toEqual([{ from: 55, to: 60, state: "primary" }]);
  // Of what was before the oldest change that is kept, its beginning is known.
  expect(stretches(CHANGES, "main", node("m1", { state: "down" }), 20, 60)).toEqual([{ from: 20, to: 40, state: "primary" }, { from: 40, to: 60, state: "down" }]);
  expect(stretches(CHANGES, "other", m2, 0, 60)).toEqual([{ from: 0, to: 60, state: "primary" }]);
  expect(epochs(CHANGES, "main", 20)).toEqual([50]);
  const again: ClusterChange[] = [{ time_s: 55, cluster: "main", kind: "primary", node: "m2", epoch: 2 }, ...CHANGES];
  expect(epochs(again, "main", 0)).toEqual([50, 10]);
});

test("each change is said in words", () => {
  expect(CHANGES.map(told)).toEqual([
    "m2 is the primary, in epoch 2",
    "m2 is primary, was standby",
    "no primary: clients wait",
    "m1 is down, was primary",
    "m3 is draining",
    "m1 is the primary, in epoch 1",
    "m2 is standby",
  ]);
});

test("what a node gets", () => {
  const [m1, m2] = [node("m1", { state: "primary" }), node("m2")];
  const both = cluster([m2, m1]);
  expect(ordered(both)).toEqual([m1, m2]);
  expect(work(both, m1, undefined).text).toBe("all statements");
  expect(work(both, m2, undefined)).toEqual({ kind: "reads", text: "reads" });
  expect(work(both, node("m2", { share: 0 }), undefined)).toEqual({ kind: "none", text: "too far behind" });
  expect(work(both, node("m2", { state: "down" }), undefined)).toEqual({ kind: "none", text: "no work" });
  const reading = node("m2", { reads: 30 });
  expect(work(both, reading, undefined)).toEqual({ kind: "reads", text: "reads" });
  expect(work(both, reading, 0.75)).toEqual({ kind: "reads", text: "75 % of reads" });
  expect(work(both, m1, 0.25).text).toBe("changes, 25 % of reads");
  expect(work(both, node("m1", { switch: "draining" }), undefined).kind).toBe("rest");
  expect(work(cluster([m1], { state: "held", primary: null }), m1, undefined).kind).toBe("none");
});

test("shares are those of the reads between two counts", () => {
  const count = (at: number, ...counts: (number | undefined)[]) => reads(cluster(counts.map((one, place) => node(`m${place}`, one === undefined ? {} : { reads: one }))), at);
  expect([...shares(count(0, 10, 10), count(5, 40, 20))]).toEqual([["m0", 0.75], ["m1", 0.25]]);
  expect(shares(count(0, 10, 10), count(5, 10, 10)).size).toBe(0);
  expect(shares(count(0, undefined), count(5, undefined)).size).toBe(0);
  // Counters began again.
  expect([...shares(count(0, 100, 10), count(5, 3, 20))]).toEqual([["m0", 0], ["m1", 1]]);
});

test("shares that standbys are to have", () => {
  const nodes = [node("m1", { state: "primary", share: null }), node("m2", { share: 1000 }), node("m3", { share: 3000 }), node("m4", { share: 0 }), node("m5", { share: 1000, switch: "detached" })];
  expect([...intended(cluster(nodes))]).toEqual([["m2", 0.25], ["m3", 0.75]]);
  expect(intended(cluster([node("m2")])).size).toBe(0);
});

test("reads that fell back, with the reason", () => {
  expect(fellBack(cluster([]))).toBe(null);
  expect(fellBack(cluster([], { fell_back_no_standby: 0, fell_back_lag: 0 }))).toBe(null);
  expect(fellBack(cluster([], { fell_back_no_standby: 3, fell_back_lag: 12 }))).toBe("Reads that went to the primary instead of a standby: 3 as no standby took reads, 12 as every standby was too far behind.");
});

test("outcomes of COMMIT", () => {
  expect(outcomes(cluster([]))).toBe(null);
  expect(outcomes(cluster([], { resolving: 0, outcomes_committed: 0, outcomes_rolled_back: 0, outcomes_unknown: 0 }))).toBe(null);
  expect(outcomes(cluster([], { resolving: 1, outcomes_committed: 3, outcomes_unknown: 2 }))).toBe("Outcome of COMMIT where the primary was lost: 3 committed, 2 not known, 1 client waits for it.");
});

test("force is offered when a refusal says so", () => {
  const refusal = "step 2 failed, transactions were still open on m1; SWITCHOVER main TO m2 tries again, SWITCHOVER main TO m2 FORCE ends them";
  expect(forcible(cluster([]))).toBe(null);
  expect(forcible(cluster([], { switchover_error: refusal }))).toBe("m2");
  expect(forcible(cluster([], { switchover_error: refusal, switchover: "to m2: step 2" }))).toBe(null);
  expect(forcible(cluster([], { switchover_error: "step 3 failed; SWITCHOVER main TO m2 tries again" }))).toBe(null);
});

test("lag in bytes, and in time where it is known", () => {
  expect(lag(node("m2", { lag_bytes: null }))).toBe(null);
  expect(lag(node("m2"))).toBe("not behind");
  expect(lag(node("m2", { lag_bytes: 1_200_000 }))).toBe("1.20 MB behind");
  expect(lag(node("m2", { lag_bytes: 1_200_000, lag_ms: 40 }))).toBe("1.20 MB, 40.0 ms behind");
});

test("the picture is as wide as the longest lag needs", () => {
  expect(pictureWidth([])).toBe(960);
  expect(pictureWidth([node("m1", { lag_bytes: null }), node("m2")])).toBe(960);
  // 22 letters that are 168 pixels wide: the last three were cut off.
  expect(pictureWidth([node("m2", { lag_bytes: 1_030, lag_ms: 134 })])).toBeGreaterThanOrEqual(816 + 168);
});
