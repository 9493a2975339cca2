// Numbers as people read them: three digits that matter, a unit, and always the same width for the same size.

/** A count: 950, 12,300, 1.25 M. */
export function count(value: number): string {
  if (Math.abs(value) >= 1e9) return `${significant(value / 1e9)} G`;
  if (Math.abs(value) >= 1e6) return `${significant(value / 1e6)} M`;
  return Math.round(value).toLocaleString("en-US");
}

/** A rate: as `count`, with one digit after the point where the number is small. */
export function rate(value: number): string {
  if (value !== 0 && Math.abs(value) < 10) return value < 0.05 ? "<0.1" : value.toFixed(1);
  return count(value);
}

/** A time in microseconds: 85 µs, 1.24 ms, 3.1 s, 4 min 10 s. */
export function duration(us: number): string {
  if (us < 1) return "0";
  if (us < 1_000) return `${Math.round(us)} µs`;
  if (us < 1_000_000) return `${significant(us / 1_000)} ms`;
  const seconds = us / 1_000_000;
  if (seconds < 60) return `${significant(seconds)} s`;
  return span(seconds);
}

/** A long time in seconds, in its two largest units: 4 min 10 s, 3 d 4 h. */
export function span(seconds: number): string {
  const units: [string, number][] = [["d", 86_400], ["h", 3_600], ["min", 60], ["s", 1]];
  const whole = Math.max(0, Math.floor(seconds));
  const first = units.findIndex(([, size]) => whole >= size);
  if (first < 0) return "0 s";
  const [name, size] = units[first]!;
  const big = `${Math.floor(whole / size)} ${name}`;
  const next = units[first + 1];
  const rest = next ? Math.floor((whole % size) / next[1]) : 0;
  return next && rest > 0 ? `${big} ${rest} ${next[0]}` : big;
}

/** Bytes with decimal units, as networks count: 950 B, 1.24 MB. */
export function bytes(value: number): string {
  const names = ["B", "kB", "MB", "GB", "TB"];
  let size = value;
  let unit = 0;
  while (size >= 1000 && unit < names.length - 1) {
    size /= 1000;
    unit += 1;
  }
  return unit === 0 ? `${Math.round(size)} B` : `${significant(size)} ${names[unit]}`;
}

/** A share between 0 and 1 as per cent. */
export function percent(share: number): string {
  const value = share * 100;
  return value !== 0 && value < 9.95 ? `${value.toFixed(1)} %` : `${Math.round(value)} %`;
}

/** "1 client", "2 clients". */
export function counted(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${Math.round(value) === 1 ? one : many}`;
}

/** Time of day, with seconds, of a Unix time in seconds. */
export function clock(unixS: number): string {
  return new Date(unixS * 1000).toLocaleTimeString("en-GB");
}

function significant(value: number): string {
  const size = Math.abs(value);
  if (size >= 99.95) return value.toFixed(0);
  if (size >= 9.995) return value.toFixed(1);
  return value.toFixed(2);
}
