// A line of time for each node, coloured by its state. The list of changes below it says the same in words.

import type { Cluster, ClusterChange } from "../api";
import { epochs, stretches, tone } from "../clusters";
import { clock } from "../format";
import { NARROW, useMedia } from "./small";

const LANE = 26;
const TONES: [string, string][] = [["primary", "primary"], ["standby", "standby"], ["attention", "unsure or starting"], ["bad", "down or refused"], ["unknown", "unknown"]];

export function Lanes({ cluster, changes, windowS, end }: { cluster: Cluster; changes: ClusterChange[]; windowS: number; end: number }) {
  const narrow = useMedia(NARROW);
  const [width, left] = narrow ? [350, 70] : [1216, 130];
  const from = end - windowS;
  const x = (time: number) => left + ((time - from) / windowS) * (width - left - 1);
  const bottom = cluster.nodes.length * LANE;
  const marks = epochs(changes, cluster.name, from);
  return (
    <figure class="lanes">
      <svg viewBox={`0 0 ${width} ${bottom + 22}`} width={width} role="img" aria-label={`The nodes' states of cluster ${cluster.name}: the changes below say the same`}>
        {cluster.nodes.map((node, at) => (
          <g key={node.name}>
            <text x="0" y={at * LANE + 17}>{node.name.length > 14 ? `${node.name.slice(0, 13)}…` : node.name}</text>
            {stretches(changes, cluster.name, node, from, end).map((one) => (
              <rect key={one.from} class={tone(one.state)} x={x(one.from)} y={at * LANE + 4} width={Math.max(1, x(one.to) - x(one.from))} height={LANE - 8}>
                <title>{`${node.name} ${one.state} from ${clock(one.from)} to ${clock(one.to)}`}</title>
              </rect>
            ))}
          </g>
        ))}
        {marks.map((time) => (
          <line key={time} class="epoch" x1={x(time)} x2={x(time)} y1="0" y2={bottom} />
        ))}
        <text class="time" x={left} y={bottom + 16}>{clock(from)}</text>
        <text class="time end" x={width - 1} y={bottom + 16}>{clock(end)}</text>
      </svg>
      <ul class="legend" aria-label="What the colours mean">
        {TONES.map(([name, text]) => (
          <li key={name}><i class={`swatch tone ${name}`} aria-hidden="true" />{text}</li>
        ))}
        <li><i class="swatch epoch" aria-hidden="true" />a new epoch begins</li>
      </ul>
    </figure>
  );
}
