// A table that can be sorted and scrolls sideways if it must; on a narrow screen, a list of cards.

import type { ComponentChildren } from "preact";
import { useMemo, useState } from "preact/hooks";

import { NARROW, useMedia } from "./small";

export interface ColumnOf<T> {
  title: string;
  /** What the column means, for a title. */
  hint?: string;
  cell: (row: T) => ComponentChildren;
  /** By what rows are sorted; a column without it cannot be sorted by. */
  by?: (row: T) => number | string;
  num?: boolean;
  /** Dropped on narrow screens. */
  wide?: boolean;
  /** May wrap, and takes the room that is left. */
  long?: boolean;
  /** In the head of a card, beside the first column. */
  head?: boolean;
  /** Of a first column: its cell needs no title in a card. */
  plain?: boolean;
  /** What can be done with a row: it has no title, and stays in sight. */
  menu?: boolean;
}

interface Props<T> {
  label: string;
  columns: ColumnOf<T>[];
  rows: T[];
  keyOf: (row: T) => string | number;
  /** Shown in place of an empty table. */
  none: ComponentChildren;
  /** The column that sorts at first, by its title, the largest first. Without it rows stay in their order. */
  sort?: string;
  /** A table on narrow screens, too: its rows are compared with each other. */
  grid?: boolean;
}

export function Table<T>(props: Props<T>) {
  const { label, columns, rows, keyOf, none, sort, grid = false } = props;
  const narrow = useMedia(NARROW);
  const [order, setOrder] = useState<{ title: string; down: boolean } | null>(sort ? { title: sort, down: true } : null);
  const sorted = useMemo(() => {
    const by = columns.find((column) => column.title === order?.title)?.by;
    if (!by || !order) return rows;
    const sign = order.down ? -1 : 1;
    return [...rows].sort((a, b) => sign * compare(by(a), by(b)));
  }, [rows, order, columns]);
  if (rows.length === 0) return <p class="none">{none}</p>;
  if (narrow && !grid) return <Cards {...props} rows={sorted} />;
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <Head key={column.title} column={column} order={order} setOrder={setOrder} />
            ))}
          </tr>
        </thead>
        <tbody>
          {sorted.map((row) => (
            <tr key={keyOf(row)}>
              {columns.map((column, at) =>
                at === 0 ? (
                  <th scope="row" key={column.title} class={classOf(column)}>{column.cell(row)}</th>
                ) : (
                  <td key={column.title} class={classOf(column)}>{column.cell(row)}</td>
                ),
              )}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Cards<T>({ label, columns, rows, keyOf }: Props<T>) {
  const [first, ...rest] = columns;
  if (!first) return null;
  const menu = rest.find((column) => column.menu);
  const others = rest.filter((column) => !column.head && !column.menu && !column.wide);
  return (
    <ul class="cards" aria-label={label}>
      {rows.map((row) => (
        <li key={keyOf(row)}>
          <div class="card-head">
            <div class={first.long ? "card-text" : ""}>
              {!first.long && !first.plain && <span class="quiet">{first.title} </span>}
              {first.cell(row)}
              {rest.filter((column) => column.head).map((column) => <span key={column.title}> {column.cell(row)}</span>)}
            </div>
            {menu?.cell(row)}
          </div>
          <dl>
            {others.map((column) => (
              <Pair key={column.title} title={column.title}>{column.cell(row)}</Pair>
            ))}
          </dl>
        </li>
      ))}
    </ul>
  );
}

/** What has nothing to say is left out of a card. */
function Pair({ title, children }: { title: string; children: ComponentChildren }) {
  if (children === "" || children === "–" || children === null) return null;
  return (
    <div>
      <dt>{title}</dt>
      <dd>{children}</dd>
    </div>
  );
}

interface HeadProps<T> {
  column: ColumnOf<T>;
  order: { title: string; down: boolean } | null;
  setOrder: (order: { title: string; down: boolean }) => void;
}

function Head<T>({ column, order, setOrder }: HeadProps<T>) {
  const here = order?.title === column.title;
  if (column.menu) return <th scope="col" class={classOf(column)}><span class="unseen">{column.title}</span></th>;
  if (!column.by) {
    return <th scope="col" class={classOf(column)} title={column.hint}>{column.title}</th>;
  }
  return (
    <th scope="col" class={classOf(column)} aria-sort={here ? (order.down ? "descending" : "ascending") : "none"}>
      <button type="button" class="sort" title={column.hint} onClick={() => setOrder({ title: column.title, down: here ? !order.down : column.num === true })}>
        {column.title}
        {here && <i aria-hidden="true">{order.down ? "↓" : "↑"}</i>}
      </button>
    </th>
  );
}

function classOf<T>(column: ColumnOf<T>): string {
  return [column.num && "num", column.wide && "wide", column.long && "long", column.menu && "menu-cell"].filter(Boolean).join(" ");
}

function compare(a: number | string, b: number | string): number {
  return typeof a === "number" && typeof b === "number" ? a - b : String(a).localeCompare(String(b));
}
