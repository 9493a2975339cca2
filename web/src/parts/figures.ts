// The arithmetic of a chart's axis and table.

/** The end of the value axis: a little above the highest value, on a round number. */
export function top(max: number | null, atLeast: number): number {
  const wanted = Math.max(max ?? 0, atLeast) * 1.08;
  const power = 10 ** Math.floor(Math.log10(wanted));
  for (const step of [1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10]) {
    if (wanted <= step * power) return step * power;
  }
  return wanted;
}

/** The ends of a logarithmic axis: whole powers of ten around all values, at least one apart. */
export function decades(min: number | null, max: number | null, atLeast: number): [number, number] {
  const high = 10 ** Math.ceil(Math.log10(Math.max(max ?? 0, atLeast)));
  const low = 10 ** Math.floor(Math.log10(Math.max(min ?? high / 10, 1)));
  return [Math.min(low, high / 10), high];
}

/** A figure for an axis: 40.0 ms is 40 ms there. */
export function short(text: string): string {
  return text.replace(/(\.\d*?)0+(?=\D|$)/, "$1").replace(/\.(?=\D|$)/, "");
}

/** Pixels of a value axis, at least; with labels of an axis' usual length all charts of a page begin at the same place. */
const AXIS_LEAST = 58;
/** Pixels of a letter of the axis' font, at most on average, and of what lies beside a label. */
const LETTER = 7;
const BESIDE = 12;

/** The width of a value axis that holds its labels: "1 min 15 s" is longer than most. */
export function axisWidth(labels: (string | null)[] | null): number {
  const letters = Math.max(0, ...(labels ?? []).map((label) => label?.length ?? 0));
  return Math.max(AXIS_LEAST, letters * LETTER + BESIDE);
}

/** Up to `most` indexes spread over `length`, the newest first. */
export function everyNth(length: number, most: number): number[] {
  const step = Math.max(1, Math.floor(length / most));
  const found: number[] = [];
  for (let at = length - 1; at >= 0 && found.length < most; at -= step) found.push(at);
  return found;
}
