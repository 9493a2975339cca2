// The page's pulse: asks once a second while the page is seen, and knows when the pooler cannot be reached.

import { useCallback, useEffect, useRef, useState } from "preact/hooks";

import { Fault, get, type Series } from "./api";
import { isHeld, onHold } from "./hold";
import { pauseMs } from "./pause";
import { EMPTY, joined } from "./series";

/** `null` while nothing has been answered yet. */
export interface Live<T> {
  value: T | null;
  /** The last request's fault, or null when it was answered. */
  fault: Fault | null;
  /** When the value came, in milliseconds of `Date.now`. */
  at: number;
  again: () => void;
}

/**
 * Calls `ask` at once and then every `everyMs`, which may depend on what was answered; slower after faults, and not while the page
 * is hidden.
 * What was answered stays while later requests fail. A change of `key` forgets it.
 */
export function useLive<T>(key: string, everyMs: number | ((value: T | null) => number), ask: () => Promise<T>): Live<T> {
  const [state, setState] = useState<{ key: string; value: T | null; fault: Fault | null; at: number }>({ key, value: null, fault: null, at: 0 });
  const latest = useRef({ ask, everyMs });
  latest.current = { ask, everyMs };
  const [round, setRound] = useState(0);
  const again = useCallback(() => setRound((n) => n + 1), []);

  useEffect(() => {
    let timer = 0;
    let over = false;
    let asking = false;
    let answered = false;
    let faults = 0;
    let last: T | null = null;
    const turn = async () => {
      window.clearTimeout(timer);
      if (asking || document.hidden || (isHeld() && answered)) return; // asked again when that is over
      asking = true;
      const begun = Date.now();
      try {
        const value = await latest.current.ask();
        faults = 0;
        const wanted = !(isHeld() && answered); // held while this was on its way
        answered = true;
        last = value;
        if (!over && wanted) setState({ key, value, fault: null, at: Date.now() });
      } catch (caught) {
        faults += 1;
        const fault = caught instanceof Fault ? caught : new Fault(0, String(caught));
        if (!over) setState((old) => ({ key, value: old.key === key ? old.value : null, fault, at: old.at }));
      }
      asking = false;
      if (over) return;
      const beat = latest.current.everyMs;
      timer = window.setTimeout(turn, pauseMs(typeof beat === "number" ? beat : beat(last), Date.now() - begun, faults));
    };
    const shown = () => {
      if (!document.hidden) void turn();
    };
    document.addEventListener("visibilitychange", shown);
    const unsubscribe = onHold(shown);
    void turn();
    return () => {
      over = true;
      window.clearTimeout(timer);
      document.removeEventListener("visibilitychange", shown);
      unsubscribe();
    };
  }, [key, round]);

  return state.key === key ? { ...state, again } : { value: null, fault: null, at: 0, again };
}

/** The series of the process, a database or a pool: the window once, then only what is new. */
export function useSeries(windowS: number, database?: string, user?: string): Live<Series> {
  const kept = useRef<{ of: string; series: Series }>({ of: "", series: EMPTY });
  const shown = useRef<{ whose: string; live: Live<Series> } | null>(null);
  const whose = JSON.stringify([database ?? null, user ?? null]);
  const of = JSON.stringify([windowS, database ?? null, user ?? null]);
  const live = useLive(`series ${of}`, 1_000, async () => {
    const before = kept.current.of === of ? kept.current.series : EMPTY;
    const since = before.time_s.at(-1);
    const news = await get<Series>("series", { window: windowS, since, database, user });
    const series = joined(before, news, windowS);
    kept.current = { of, series };
    return series;
  });
  // Another window of the same: what was there stays until the answer comes, so that nothing jumps.
  if (live.value) shown.current = { whose, live };
  else if (shown.current?.whose === whose && !live.fault) return shown.current.live;
  return live;
}
