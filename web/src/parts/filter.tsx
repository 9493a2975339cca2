// What a list is narrowed to, and sorted by. Each choice is kept in the address, so that it can be sent to a colleague.

import type { ComponentChildren } from "preact";

import { requery, type Route } from "../route";

export interface Choice {
  /** The word of the address' query that the choice is kept in. */
  word: string;
  title: string;
  /** Values, and how they are called. */
  options: Record<string, string>;
  /** How "all of them" is called; null when one must be chosen. */
  any?: string | null;
}

export function Filters({ route, choices, children }: { route: Route; choices: Choice[]; children?: ComponentChildren }) {
  const chosen = choices.filter((choice) => choice.any !== null && route.query.get(choice.word));
  return (
    <div class="filter">
      {choices.map((choice) => (
        <Select key={choice.word} route={route} choice={choice} />
      ))}
      {children}
      {chosen.length > 0 && (
        <button type="button" class="plain" onClick={() => requery(route, Object.fromEntries(chosen.map((choice) => [choice.word, ""])))}>Show all</button>
      )}
    </div>
  );
}

function Select({ route, choice: { word, title, options, any = "any" } }: { route: Route; choice: Choice }) {
  const value = route.query.get(word) ?? (any === null ? (Object.keys(options)[0] ?? "") : "");
  // What was chosen stays to be seen, though no row has it now.
  const shown = value !== "" && !(value in options) ? { ...options, [value]: value } : options;
  return (
    <label>
      {title}
      <select aria-label={title} value={value} onChange={(event) => requery(route, { [word]: event.currentTarget.value })}>
        {any !== null && <option value="">{any}</option>}
        {Object.entries(shown).map(([one, name]) => (
          <option key={one} value={one} selected={one === value}>{name}</option>
        ))}
      </select>
    </label>
  );
}

/** A search box; its words are not in the address, which would grow with each key. */
export function Find({ value, set, label = "Find" }: { value: string; set: (words: string) => void; label?: string }) {
  return (
    <label>
      {label}
      <input type="search" value={value} onInput={(event) => set(event.currentTarget.value)} />
    </label>
  );
}

/** Options that are called what they are. */
export function plainly(values: string[] | undefined): Record<string, string> {
  return Object.fromEntries((values ?? []).map((value) => [value, value]));
}

/** All of these words are in the text, whatever their case. */
export function matches(text: string, words: string): boolean {
  const lower = text.toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}
