// The columns of a chart: what was fetched, joined with what came since, as long as the window.

import type { Column, Series } from "./api";

export const EMPTY: Series = { step_s: 1, time_s: [], columns: {} };

/** `kept` and what is newer in `news`, without what is older than `windowS` before the last point. */
export function joined(kept: Series, news: Series, windowS: number): Series {
  if (news.step_s !== kept.step_s && news.time_s.length > 0) return news;
  const last = kept.time_s.at(-1) ?? -Infinity;
  const from = news.time_s.findIndex((time) => time > last);
  if (from < 0) return kept;
  const end = news.time_s.at(-1)!;
  const cut = kept.time_s.findIndex((time) => time > end - windowS - news.step_s);
  const keep = cut < 0 ? kept.time_s.length : cut;
  const columns: Record<string, Column> = {};
  for (const name of new Set([...Object.keys(kept.columns), ...Object.keys(news.columns)])) {
    columns[name] = [...padded(kept.columns[name], kept.time_s.length).slice(keep), ...padded(news.columns[name], news.time_s.length).slice(from)];
  }
  return { step_s: news.step_s, time_s: [...kept.time_s.slice(keep), ...news.time_s.slice(from)], columns };
}

function padded(column: Column | undefined, length: number): Column {
  return column ?? Array<null>(length).fill(null);
}

/** A column by name; nulls where the pooler has none. */
export function column(series: Series, name: string): Column {
  return series.columns[name] ?? Array<null>(series.time_s.length).fill(null);
}

/** The sum of columns at each time; null where all are null. */
export function sum(...columns: Column[]): Column {
  const length = Math.max(0, ...columns.map((one) => one.length));
  return Array.from({ length }, (_, at) => {
    let total: number | null = null;
    for (const one of columns) {
      const value = one[at];
      if (value !== null && value !== undefined) total = (total ?? 0) + value;
    }
    return total;
  });
}
