// Following the log: new lines are joined with those that are there.

import type { LogLine } from "./api";

/** Lines that are kept; the oldest fall out. */
const MOST = 1_000;

/** The number of the newest line, after which the next request asks. */
export function lastOf(lines: LogLine[]): number | undefined {
  return lines[0]?.id;
}

/** `news` before the lines that were there, both with the newest first. */
export function followed(before: LogLine[], news: LogLine[]): LogLine[] {
  if (news.length === 0) return before;
  // A pgweir that was started again counts from 1 on, and sends all that it has.
  const isAnother = news.at(-1)!.id <= (lastOf(before) ?? 0);
  return (isAnother ? news : [...news, ...before]).slice(0, MOST);
}
