// The clusters: who is the primary, how far standbys are behind, what each node is sent, and what changed.

import { useRef } from "preact/hooks";

import { get, type Cluster, type ClusterChange, type ClusterNode, type Clusters, type NodeAction, type Overview } from "../api";
import { address, fellBack, forcible, intended, lag, outcomes, reads, shares, told, work, type Count } from "../clusters";
import { clock, count, counted, duration, span } from "../format";
import { type Live, useLive } from "../live";
import { useServices, type Services } from "../context";
import { RecheckButton, cancelSwitchover, switchNode, switchOver } from "../parts/actions";
import { WindowPicker } from "../parts/charts";
import { Lanes } from "../parts/lanes";
import { Menu, type MenuItem } from "../parts/menu";
import { Badge, Placeholder, Two } from "../parts/small";
import { Table, type ColumnOf } from "../parts/table";
import { Topology } from "../parts/topology";
import { Found } from "../parts/verdict";
import { href } from "../route";
import { findings } from "../verdict";

/** Shares of reads are those of so many seconds. */
const SHARES_OF_S = 10;
const TONES: Record<ClusterNode["state"], string> = { primary: "active", standby: "", unknown: "", unsure: "attention", starting: "attention", down: "bad", refused: "bad" };

export function ClustersPage({ live: overview, windowS, pick }: { live: Live<Overview>; windowS: number; pick: (seconds: number) => void }) {
  const { session } = useServices();
  const live = useLive<Clusters>(`clusters ${session.role}`, 1_000, () => get("clusters"));
  const now = live.value;
  const shared = useShares(now);
  if (!now) return <Placeholder fault={live.fault}>Loading …</Placeholder>;
  if (now.clusters.length === 0) return <Placeholder>No cluster is configured.</Placeholder>;
  return (
    <>
      {overview.value && <Found on={{ page: "clusters", parts: [] }} all={findings(overview.value, [], [])} />}
      {now.clusters.map((cluster) => (
        <OneCluster key={cluster.name} cluster={cluster} now={now} shares={shared.get(cluster.name) ?? new Map()} again={live.again} />
      ))}
      <section aria-labelledby="changes">
        <div class="section-head">
          <h2 id="changes">What changed</h2>
          <WindowPicker windowS={windowS} pick={pick} />
        </div>
        {now.clusters.map((cluster) => (
          <div key={cluster.name}>
            {now.clusters.length > 1 && <h3>{cluster.name}</h3>}
            <Lanes cluster={cluster} changes={now.changes} windowS={windowS} end={now.time_s} />
          </div>
        ))}
        <Table label="What changed" columns={changeColumns(now.clusters.length > 1)} rows={now.changes} keyOf={keyOfChange} none="Nothing has changed since pgweir started." />
      </section>
    </>
  );
}

/** The share of each node in the reads of the last seconds, by cluster; where none were counted, the share that it is to have. */
function useShares(now: Clusters | null): Map<string, Map<string, number>> {
  const kept = useRef(new Map<string, Count[]>());
  const found = new Map<string, Map<string, number>>();
  for (const cluster of now?.clusters ?? []) {
    const here = reads(cluster, now!.time_s);
    const before = (kept.current.get(cluster.name) ?? []).filter((one) => one.at < here.at);
    const first = before.findLast((one) => here.at - one.at >= SHARES_OF_S) ?? before[0];
    kept.current.set(cluster.name, [...before.filter((one) => !first || one.at >= first.at), here]);
    const counted = first ? shares(first, here) : new Map<string, number>();
    found.set(cluster.name, counted.size > 0 ? counted : intended(cluster));
  }
  return found;
}

interface Props {
  cluster: Cluster;
  now: Clusters;
  shares: Map<string, number>;
  again: () => void;
}

function OneCluster({ cluster, now, shares: of, again }: Props) {
  const services = useServices();
  return (
    <section aria-labelledby={`cluster-${cluster.name}`}>
      <div class="section-head">
        <h2 id={`cluster-${cluster.name}`}>
          {cluster.name} {cluster.state === "held" && <Badge tone="bad">no primary</Badge>}
        </h2>
        <RecheckButton cluster={cluster.name} again={again} />
      </div>
      <p class="hint">
        {cluster.primary !== null && `${cluster.primary} is the primary, in epoch ${cluster.epoch}. `}
        <Databases names={cluster.databases} />
        <Source cluster={cluster} />
        {fellBack(cluster) !== null && ` ${fellBack(cluster)}`}
        {outcomes(cluster) !== null && ` ${outcomes(cluster)}`}
      </p>
      <Switchover cluster={cluster} services={services} again={again} />
      {cluster.state === "held" && cluster.switchover == null && <Held cluster={cluster} now={now.time_s} />}
      <div class="scroll"><Topology cluster={cluster} shares={of} /></div>
      <Table label={`Nodes of ${cluster.name}`} columns={nodeColumns(cluster, now.time_s, of, services, again)} rows={cluster.nodes} keyOf={(node) => node.name} none="It has no nodes." />
    </section>
  );
}

function Databases({ names }: { names: string[] }) {
  if (names.length === 0) return <>No database uses it.</>;
  return (
    <>
      It serves{" "}
      {names.map((name, at) => (
        <span key={name}>
          {at > 0 && ", "}
          {name === "*" ? "all other databases" : <a href={href("database", [name])}>{name}</a>}
        </span>
      ))}
      .
    </>
  );
}

/** Who told the roles, if it is not the nodes alone. */
function Source({ cluster: { discovery, source, source_age_ms, source_error } }: { cluster: Cluster }) {
  if (discovery == null || discovery === "sql") return null;
  const by = source == null ? "" : ` by ${source}`;
  const age = source_age_ms == null ? "" : `, ${duration(source_age_ms * 1000)} ago`;
  return <>{` Nodes are told by ${discovery}${by}${age}${source_error ? `: ${source_error}` : ""}.`}</>;
}

function Held({ cluster: { name, held_clients, held_since_s, reason }, now }: { cluster: Cluster; now: number }) {
  const since = held_since_s === null ? "" : ` for ${span(now - held_since_s)}`;
  return (
    <div class="notice bad">
      <p>
        {name} has had no primary{since}. {held_clients === 0 ? "No client waits for it." : `${counted(held_clients, "client")} ${held_clients === 1 ? "waits" : "wait"}; none gets an error before primary_wait is over.`}
      </p>
      {reason && <p class="error-text">{reason}</p>}
    </div>
  );
}

/** A switchover that is under way, or why the last one failed. */
function Switchover({ cluster, services, again }: { cluster: Cluster; services: Services; again: () => void }) {
  const { name, switchover, switchover_error } = cluster;
  if (switchover != null) {
    return (
      <div class="notice" role="status">
        <p>A switchover {switchover}. {counted(cluster.held_clients, "client")} {cluster.held_clients === 1 ? "waits" : "wait"}.</p>
        {services.session.may_act && <button type="button" onClick={() => services.ask(cancelSwitchover(services, name, again))}>Cancel the switchover</button>}
      </div>
    );
  }
  if (switchover_error == null) return null;
  const node = forcible(cluster);
  return (
    <div class="notice bad">
      <p>The last switchover of {name} did not take place.</p>
      <p class="error-text">{switchover_error}</p>
      {services.session.may_act && node !== null && <button type="button" class="danger" onClick={() => services.ask(switchOver(services, name, node, true, again))}>Switch over by force …</button>}
    </div>
  );
}

function nodeColumns(cluster: Cluster, now: number, of: Map<string, number>, services: Services, again: () => void): ColumnOf<ClusterNode>[] {
  const names = services.session.sees_names;
  const some = (has: (node: ClusterNode) => boolean) => cluster.nodes.some(has);
  const all: (ColumnOf<ClusterNode> | false)[] = [
    { title: "Node", cell: (node) => <Two first={node.name} second={node.zone ? `zone ${node.zone}` : null} /> },
    {
      title: "State",
      head: true,
      cell: (node) => (
        <>
          <Badge tone={TONES[node.state]}>{node.state}</Badge>
          {node.switch !== "attached" && <Badge tone="attention">{node.switch}</Badge>}
        </>
      ),
    },
    { title: "For", num: true, hint: "how long it has been in this state", cell: (node) => (node.state_since_s === null ? "–" : span(now - node.state_since_s)) },
    { title: "Gets", hint: "what clients send to it", cell: (node) => work(cluster, node, of.get(node.name)).text },
    { title: "Lag", num: true, hint: "how far it is behind the primary", cell: (node) => lag(node) ?? "–" },
    some((node) => node.reads != null) && { title: "Reads", num: true, hint: "since the start", cell: (node) => (node.reads == null ? "–" : count(node.reads)) },
    some((node) => node.sv_active != null) && { title: "Servers", num: true, hint: "busy, of those that are open", cell: (node) => `${count(node.sv_active ?? 0)}/${count((node.sv_active ?? 0) + (node.sv_idle ?? 0))}` },
    { title: "Timeline", num: true, wide: true, cell: (node) => node.timeline ?? "–" },
    { title: "Position", num: true, wide: true, hint: "in the write-ahead log", cell: (node) => node.position ?? "–" },
    names && { title: "Address", cell: (node) => address(node) ?? "–" },
    names && some((node) => node.last_error !== null) && { title: "Last error", long: true, cell: (node) => node.last_error ?? "" },
    services.session.may_act && { title: "More", menu: true, cell: (node) => <Menu label={`More about node ${node.name}`} items={items(services, cluster, node, again)} /> },
  ];
  return all.filter((column) => column !== false);
}

function items(services: Services, cluster: Cluster, node: ClusterNode, again: () => void): MenuItem[] {
  const item = (action: NodeAction, text: string): MenuItem => ({ text, run: () => services.ask(switchNode(services, action, cluster.name, node.name, again)) });
  const canLead = node.state === "standby" && node.switch === "attached" && cluster.primary !== null && cluster.switchover == null;
  return [
    ...(canLead ? [{ text: "Make it the primary …", run: () => services.ask(switchOver(services, cluster.name, node.name, false, again)) }] : []),
    ...(node.switch === "attached" ? [] : [item("attach", "Attach …")]),
    ...(node.switch === "draining" ? [] : [item("drain", "Drain …")]),
    ...(node.switch === "detached" || node.name === cluster.primary ? [] : [item("detach", "Detach …")]),
  ];
}

function changeColumns(several: boolean): ColumnOf<ClusterChange>[] {
  const cluster: ColumnOf<ClusterChange>[] = several ? [{ title: "Cluster", head: true, cell: (change) => change.cluster }] : [];
  return [
    { title: "Time", plain: true, cell: (change) => <time dateTime={new Date(change.time_s * 1000).toISOString()} title={new Date(change.time_s * 1000).toLocaleString("en-GB")}>{clock(change.time_s)}</time> },
    ...cluster,
    { title: "What", long: true, head: true, cell: (change) => <Two first={told(change)} second={change.kind === "state" ? change.error : null} /> },
  ];
}

function keyOfChange(change: ClusterChange): string {
  return `${change.time_s} ${change.cluster} ${told(change)}`;
}
