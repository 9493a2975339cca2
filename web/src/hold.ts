// Figures can be held still, to be read or compared. What has not been shown yet is still asked for, once.

import { useEffect, useState } from "preact/hooks";

let held = false;
const listeners = new Set<() => void>();

export function isHeld(): boolean {
  return held;
}

export function hold(on: boolean): void {
  held = on;
  for (const listener of listeners) listener();
}

/** Calls `listener` whenever that changes; the answer ends it. */
export function onHold(listener: () => void): () => void {
  listeners.add(listener);
  return () => void listeners.delete(listener);
}

export function useHold(): boolean {
  const [value, set] = useState(held);
  useEffect(() => onHold(() => set(held)), []);
  return value;
}
