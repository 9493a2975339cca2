// The picture of a cluster: pgweir, the primary and its standbys, what each is sent, and how far each is behind.

import type { Cluster, ClusterNode } from "../api";
import { address, lag, ordered, pictureWidth, tone, work, type Work } from "../clusters";
import { counted } from "../format";
import { NARROW, useMedia } from "./small";

const NODE_HEIGHT = 74;
const NODE_GAP = 22;
/** Letters that fit into a node's line. */
const LINE_LETTERS = 44;

interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

interface Layout {
  width: number;
  height: number;
  pooler: Box;
  nodes: Box[];
  /** From pgweir to a node. */
  link: (node: Box) => string;
  /** Whether there is room beside the boxes. */
  wide: boolean;
}

export function Topology({ cluster, shares }: { cluster: Cluster; shares: Map<string, number> }) {
  const narrow = useMedia(NARROW);
  const nodes = ordered(cluster);
  const layout = narrow ? below(nodes.length) : beside(nodes.length, pictureWidth(nodes));
  const drawn = nodes.map((node, at) => ({ node, box: layout.nodes[at]!, its: work(cluster, node, shares.get(node.name)) }));
  const primary = drawn.find(({ node }) => cluster.state === "available" && node.name === cluster.primary);
  return (
    <svg class="topology" viewBox={`0 0 ${layout.width} ${layout.height}`} width={layout.width} role="img" aria-label={`Cluster ${cluster.name}: the table below says the same`}>
      {drawn.map(({ node, box, its }) => (
        <Link key={node.name} path={layout.link(box)} box={box} its={its} share={shares.get(node.name)} wide={layout.wide} />
      ))}
      {layout.wide && primary && drawn.filter(({ node }) => node.state === "standby").map(({ node, box }) => <Stream key={node.name} from={primary.box} to={box} text={lag(node)} />)}
      <Pooler box={layout.pooler} cluster={cluster} />
      {drawn.map(({ node, box, its }) => (
        <Node key={node.name} node={node} box={box} more={layout.wide ? null : [its.text, lag(node)].filter(Boolean).join(", ")} />
      ))}
    </svg>
  );
}

/** pgweir on the left, nodes on the right, and room for the standbys' lag. */
function beside(count: number, width: number): Layout {
  const height = Math.max(1, count) * (NODE_HEIGHT + NODE_GAP) - NODE_GAP + 4;
  const pooler = { x: 1, y: height / 2 - 45, width: 170, height: 90 };
  const nodes = Array.from({ length: count }, (_, at) => ({ x: 400, y: 2 + at * (NODE_HEIGHT + NODE_GAP), width: 370, height: NODE_HEIGHT }));
  const link = (node: Box) => {
    const [x, y, to] = [pooler.x + pooler.width, height / 2, node.y + node.height / 2];
    return `M${x} ${y}C${x + 70} ${y} ${x + 20} ${to} ${x + 90} ${to}H${node.x}`;
  };
  return { width, height: Math.max(height, 94), pooler: { ...pooler, y: Math.max(pooler.y, 1) }, nodes, link, wide: true };
}

/** pgweir above its nodes. */
function below(count: number): Layout {
  const pooler = { x: 1, y: 1, width: 348, height: 58 };
  const nodes = Array.from({ length: count }, (_, at) => ({ x: 44, y: 80 + at * (NODE_HEIGHT + 14), width: 305, height: NODE_HEIGHT }));
  const link = (node: Box) => `M20 ${pooler.y + pooler.height}V${node.y + node.height / 2}H${node.x}`;
  return { width: 350, height: 80 + count * (NODE_HEIGHT + 14), pooler, nodes, link, wide: false };
}

function Pooler({ box, cluster }: { box: Box; cluster: Cluster }) {
  const middle = box.x + box.width / 2;
  const held = cluster.state === "held" || cluster.held_clients > 0;
  const lines = [held ? `${counted(cluster.held_clients, "client")} ${cluster.held_clients === 1 ? "waits" : "wait"}` : null, `epoch ${cluster.epoch}`].filter((line) => line !== null);
  const top = box.y + box.height / 2 - 10 * lines.length + 5;
  return (
    <g class={held ? "pooler held" : "pooler"}>
      <rect x={box.x} y={box.y} width={box.width} height={box.height} rx="8" />
      <text x={middle} y={top} class="name">pgweir</text>
      {lines.map((line, at) => (
        <text key={at} x={middle} y={top + 20 * (at + 1)}>{line}</text>
      ))}
    </g>
  );
}

/** `more`: what is not told beside the box. */
function Node({ node, box, more }: { node: ClusterNode; box: Box; more: string | null }) {
  const left = box.x + 14;
  const place = [address(node), node.zone && `zone ${node.zone}`, node.timeline !== null && `timeline ${node.timeline}`].filter(Boolean).join(", ");
  const last = more ?? (node.last_error || (node.position === null ? "" : `at ${node.position}`));
  const state = node.switch === "attached" ? node.state : `${node.state}, ${node.switch}`;
  return (
    <g class={`node ${tone(node.state)}${node.switch === "attached" ? "" : " away"}`}>
      <title>{[`${node.name}: ${state}`, place, node.last_error].filter(Boolean).join("\n")}</title>
      <rect x={box.x} y={box.y} width={box.width} height={box.height} rx="8" />
      <rect class="edge" x={box.x} y={box.y} width="6" height={box.height} rx="3" />
      <text x={left} y={box.y + 24} class="name">{cut(node.name, 24)}</text>
      <text x={box.x + box.width - 12} y={box.y + 24} class="state">{state}</text>
      <text x={left} y={box.y + 44} class="small">{cut(place, LINE_LETTERS)}</text>
      <text x={left} y={box.y + 62} class="small">{cut(last, LINE_LETTERS)}</text>
    </g>
  );
}

function Link({ path, box, its, share, wide }: { path: string; box: Box; its: Work; share: number | undefined; wide: boolean }) {
  const width = its.kind === "none" ? 1.5 : its.kind === "all" ? 4 : 1.5 + 5 * (share ?? 0);
  return (
    <g class={`link ${its.kind}`}>
      <path d={path} style={{ strokeWidth: width }} />
      {wide && <text x={box.x - 10} y={box.y + box.height / 2 - 8}>{its.text}</text>}
    </g>
  );
}

/** What a standby receives from the primary. */
function Stream({ from, to, text }: { from: Box; to: Box; text: string | null }) {
  const [x, y, end] = [from.x + from.width, from.y + from.height / 2, to.y + to.height / 2];
  return (
    <g class="stream">
      <path d={`M${x} ${y}C${x + 46} ${y} ${x + 46} ${end} ${x + 9} ${end}`} />
      <path class="head" d={`M${x + 1} ${end}l9 -4v8z`} />
      {text !== null && <text x={x + 46} y={end + 5}>{text}</text>}
    </g>
  );
}

function cut(text: string, letters: number): string {
  return text.length > letters ? `${text.slice(0, letters - 1)}…` : text;
}
