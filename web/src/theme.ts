// Light or dark: what the system says, unless the reader has chosen.

import { useEffect, useState } from "preact/hooks";

export type Theme = "system" | "light" | "dark";

const KEY = "pgweir-theme";
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const listeners = new Set<() => void>();

let chosen: Theme = read();
apply();
dark.addEventListener("change", apply);

function read(): Theme {
  try {
    const kept = localStorage.getItem(KEY);
    return kept === "light" || kept === "dark" ? kept : "system";
  } catch {
    return "system"; // storage may be forbidden; then the choice lasts as long as the page
  }
}

function apply(): void {
  const isDark = chosen === "dark" || (chosen === "system" && dark.matches);
  document.documentElement.dataset["theme"] = isDark ? "dark" : "light";
  for (const listener of listeners) listener();
}

/** What the reader chose. */
export function chosenTheme(): Theme {
  return chosen;
}

export function choose(theme: Theme): void {
  chosen = theme;
  try {
    if (theme === "system") localStorage.removeItem(KEY);
    else localStorage.setItem(KEY, theme);
  } catch {
    // see read()
  }
  apply();
}

/** The theme in force, "light" or "dark"; the caller is drawn again when it changes. */
export function useTheme(): "light" | "dark" {
  const [theme, set] = useState(current);
  useEffect(() => {
    const listener = () => set(current());
    listeners.add(listener);
    return () => void listeners.delete(listener);
  }, []);
  return theme;
}

function current(): "light" | "dark" {
  return document.documentElement.dataset["theme"] === "dark" ? "dark" : "light";
}

/** A colour of the style sheet by its variable's name, for canvas drawing. */
export function colour(name: string): string {
  return getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();
}

/** `share` of the first colour over the second; both as #rrggbb. Areas overlap on the canvas, so they must not be transparent. */
export function mix(over: string, under: string, share: number): string {
  const channels = [1, 3, 5].map((at) => {
    const [a, b] = [over, under].map((hex) => Number.parseInt(hex.slice(at, at + 2), 16));
    return Math.round(a! * share + b! * (1 - share)).toString(16).padStart(2, "0");
  });
  return `#${channels.join("")}`;
}
