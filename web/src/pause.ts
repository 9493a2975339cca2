// How long to wait before asking again.

const SLOWEST_MS = 10_000;
/** Between an answer and the next question, however long the answer took. */
const BREATH_MS = 100;

/** After an answer: what is left of the beat. After faults in a row: twice as long each time, up to a limit. */
export function pauseMs(everyMs: number, tookMs: number, faults: number): number {
  if (faults === 0) return Math.max(BREATH_MS, everyMs - tookMs);
  return Math.max(everyMs, Math.min(SLOWEST_MS, everyMs * 2 ** Math.min(faults - 1, 10)));
}
