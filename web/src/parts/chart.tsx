// A time series: lines and areas on a canvas, a legend that tells the figures in words, and the same as a table.
//
// The canvas says nothing to a screen reader; the legend and the table behind "Figures" do.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import uPlot from "uplot";

import { clock } from "../format";
import { colour, mix, useTheme } from "../theme";
import { axisWidth, decades, everyNth, short, top } from "./figures";

export interface Line {
  label: string;
  /** Name of a colour variable of the style sheet. */
  colour: string;
  values: (number | null)[];
  /** What the legend and the table show, where it is not what is drawn (stacked areas). */
  figures?: (number | null)[];
  look?: "line" | "area" | "thick" | "dashed";
}

interface Props {
  title: string;
  /** One sentence on what is seen. */
  hint?: string;
  times: number[];
  lines: Line[];
  format: (value: number) => string;
  /** Seconds that the time axis spans; it ends at `end`. */
  windowS: number;
  end: number;
  height?: number;
  /** The axis reaches at least this far, so that a little noise does not fill the chart. */
  atLeast?: number;
  /** A logarithmic axis of values, for what spreads over orders of magnitude. */
  log?: boolean;
  id: string;
}

const SYNC = "pgweir";
/** What may lie between two times on the axis, in seconds. */
const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600];
/** Seconds that the time axis spans at least. */
const SHORTEST_S = 30;

export function Chart(props: Props) {
  const { title, hint, lines, format, height = 150, id } = props;
  const theme = useTheme();
  const box = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const latest = useRef(props);
  latest.current = props;
  const [hovered, setHovered] = useState<number | null>(null);
  const shape = lines.map((line) => `${line.label}:${line.colour}:${line.look ?? ""}`).join("|");

  useEffect(() => {
    const at = box.current!;
    const made = new uPlot(options(latest, at.clientWidth, height, setHovered), data(latest.current), at);
    plot.current = made;
    const observer = new ResizeObserver(() => {
      if (at.clientWidth > 0) made.setSize({ width: at.clientWidth, height });
    });
    observer.observe(at);
    return () => {
      observer.disconnect();
      made.destroy();
      plot.current = null;
    };
  }, [theme, shape, height]);

  useEffect(() => {
    plot.current?.setData(data(props));
  }, [props.times, props.lines, props.windowS, props.end]);

  const index = hovered !== null && hovered < props.times.length ? hovered : props.times.length - 1;
  return (
    <figure class="chart" aria-labelledby={`${id}-title`}>
      <figcaption>
        <h3 id={`${id}-title`}>{title}</h3>
        {hint && <p class="hint">{hint}</p>}
      </figcaption>
      <ul class="legend">
        {lines.map((line) => (
          <li key={line.label}>
            <i class={`swatch ${line.look ?? "line"}`} style={{ "--swatch": `var(--${line.colour})` }} aria-hidden="true" />
            <span class="label">{line.label}</span> <b class="figure">{shown(line, index, format)}</b>
          </li>
        ))}
        {hovered !== null && props.times[index] !== undefined && <li class="when" aria-hidden="true">at {clock(props.times[index])}</li>}
      </ul>
      <div class="canvas" ref={box} aria-hidden="true" style={{ height: `${height}px` }} />
      <Figures {...props} />
    </figure>
  );
}

function shown(line: Line, index: number, format: (value: number) => string): string {
  const value = (line.figures ?? line.values)[index];
  return value === null || value === undefined ? "–" : format(value);
}

/** The same as a table of a dozen rows; made only while it is open. */
function Figures({ title, times, lines, format }: Props) {
  const [open, setOpen] = useState(false);
  const rows = useMemo(() => (open ? everyNth(times.length, 12) : []), [open, times]);
  return (
    <details class="figures" onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>
        Figures<span class="unseen"> of {title}</span>
      </summary>
      {open && (
        <div class="scroll" tabIndex={0} role="region" aria-label={`Figures of ${title}`}>
          <table>
            <thead>
              <tr>
                <th scope="col">Time</th>
                {lines.map((line) => (
                  <th scope="col" class="num" key={line.label}>{line.label}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {rows.map((row) => (
                <tr key={times[row]}>
                  <th scope="row">{clock(times[row]!)}</th>
                  {lines.map((line) => (
                    <td class="num" key={line.label}>{shown(line, row, format)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      )}
    </details>
  );
}

/** The window, or what there is of it: a process that has just begun fills the chart sooner. */
function spanned({ times, end, windowS }: Props): number {
  return Math.min(windowS, Math.max(SHORTEST_S, end - (times[0] ?? end)));
}

/** Nothing at or below zero can be drawn on a logarithmic axis. */
function data({ times, lines, log = false }: Props): uPlot.AlignedData {
  const drawable = (value: number | null) => (value !== null && value > 0 ? value : null);
  return [times, ...lines.map((line) => (log ? line.values.map(drawable) : line.values))] as uPlot.AlignedData;
}

function options(
  latest: { current: Props },
  width: number,
  height: number,
  hover: (index: number | null) => void,
): uPlot.Options {
  const axis = { stroke: colour("ink-3"), font: "12px system-ui, sans-serif", ticks: { show: false } };
  const rule = { stroke: colour("line"), width: 1 };
  return {
    width,
    height,
    padding: [8, 22, 0, 0],
    legend: { show: false },
    cursor: {
      sync: { key: SYNC },
      drag: { x: false, y: false },
      y: false,
      points: { size: 6, width: 0 },
    },
    scales: {
      x: { time: true, range: () => [latest.current.end - spanned(latest.current), latest.current.end] },
      y: latest.current.log
        ? { distr: 3, log: 10, range: (_, min, max) => decades(min, max, latest.current.atLeast ?? 1) }
        : { range: (_, __, max) => [0, top(max, latest.current.atLeast ?? 1)] },
    },
    axes: [
      { ...axis, grid: { show: false }, size: 24, gap: 4, space: (plot) => (plot.width < 420 ? 58 : 80), incrs: STEPS_S, values: (_, splits, __, ___, step) => splits.map((at) => tick(at, step)) },
      { ...axis, ...(latest.current.log && { filter: decadesOnly }), grid: latest.current.log ? { ...rule, filter: decadesOnly } : rule, size: (_, labels) => axisWidth(labels), gap: 6, space: 34, values: (_, splits) => splits.map((at) => (at === null ? "" : at === 0 ? "0" : short(latest.current.format(at)))) },
    ],
    series: [{}, ...latest.current.lines.map(drawn)],
    hooks: { setCursor: [(plot) => hover(plot.cursor.idx ?? null)] },
  };
}

/** Of a logarithmic axis only the powers of ten are marked. */
function decadesOnly(_: uPlot, splits: number[]): (number | null)[] {
  return splits.map((at) => (Math.abs(Math.log10(at) % 1) < 1e-9 ? at : null));
}

function drawn(line: Line): uPlot.Series {
  const stroke = colour(line.colour);
  switch (line.look) {
    case "area":
      return { stroke, width: 1, fill: mix(stroke, colour("paper"), 0.34), points: { show: false } };
    case "thick":
      return { stroke, width: 2.5, points: { show: false } };
    case "dashed":
      return { stroke, width: 1.25, dash: [5, 4], points: { show: false } };
    default:
      return { stroke, width: 1.5, points: { show: false } };
  }
}

function tick(at: number, stepS: number): string {
  const text = clock(at);
  return stepS >= 60 ? text.slice(0, 5) : text;
}
