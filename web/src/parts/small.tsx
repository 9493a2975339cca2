// Small things that several pages use.

import type { ComponentChildren } from "preact";
import { useEffect, useState } from "preact/hooks";

import type { ClientCounts, ServerCounts } from "../api";
import { count, duration } from "../format";
import { href } from "../route";

/** A word in a coloured frame; the word is enough, the colour helps. */
export function Badge({ tone, children }: { tone: string; children: ComponentChildren }) {
  return <span class={`badge ${tone}`}>{children}</span>;
}

/** Clients by state as a bar, with the figures beside it. */
export function ClientBar({ clients, most }: { clients: ClientCounts; most: number }) {
  const pinned = clients.pinned ?? 0;
  const parts: [string, number][] = [["active", clients.active - pinned], ["pinned", pinned], ["waiting", clients.waiting], ["idle", clients.idle]];
  const told = parts.filter(([state, n]) => n > 0 || state !== "pinned").map(([state, n]) => `${count(n)} ${state === "active" ? "working" : state}`);
  return (
    <Bar parts={parts} most={most} told={told.join(", ")}>
      {count(clients.total)}
    </Bar>
  );
}

/** Server connections by state as a bar that is as long as the pool may grow. */
export function ServerBar({ servers }: { servers: ServerCounts }) {
  const other = servers.tested + servers.login + servers.being_canceled;
  const ready = servers.idle + servers.used;
  const parts: [string, number][] = [["busy", servers.active], ["other", other], ["ready", ready]];
  return (
    <Bar parts={parts} most={Math.max(servers.limit, servers.total)} told={`${count(servers.active)} busy, ${count(ready)} ready`}>
      {count(servers.total)}
      {servers.limit > 0 && <span class="quiet">/{count(servers.limit)}</span>}
    </Bar>
  );
}

/** Where the time of a statement went: in the queue, at PostgreSQL, held up by the client. The bar is as long as its column. */
export function SplitBar({ split, figure }: { split: { wait_us: number; server_us: number; client_us: number }; figure: string }) {
  const parts: [string, number][] = [["wait", split.wait_us], ["work", split.server_us], ["read", split.client_us]];
  const told = `${duration(split.wait_us)} waiting for a connection, ${duration(split.server_us)} at PostgreSQL, ${duration(split.client_us)} until the client read`;
  return (
    <Bar parts={parts} most={split.wait_us + split.server_us + split.client_us} told={told} stacked>
      {figure}
    </Bar>
  );
}

/** `stacked`: the bar lies under its figure. */
function Bar({ parts, most, told, stacked = false, children }: { parts: [string, number][]; most: number; told: string; stacked?: boolean; children: ComponentChildren }) {
  return (
    <span class={stacked ? "bar stacked" : "bar"} title={told}>
      <span class="bar-figure">{children}</span>
      <span class="bar-track" aria-hidden="true">
        {parts.map(([state, n]) => n > 0 && <i key={state} class={state} style={{ width: `${(100 * n) / Math.max(most, 1)}%` }} />)}
      </span>
      <span class="unseen">{told}</span>
    </span>
  );
}

/** A choice of a few, all of them seen. */
export function Segments({ legend, name, options, value, pick }: { legend: string; name: string; options: { value: string; label: string }[]; value: string; pick: (value: string) => void }) {
  return (
    <fieldset class="segments">
      <legend class="unseen">{legend}</legend>
      {options.map((option) => (
        <label key={option.value}>
          <input type="radio" name={name} checked={option.value === value} onChange={() => pick(option.value)} />
          <span>{option.label}</span>
        </label>
      ))}
    </fieldset>
  );
}

/** Two things that belong together, the second below the first. */
export function Two({ first, second }: { first: string; second: string | null }) {
  return (
    <>
      {first}
      {second !== null && <span class="under">{second}</span>}
    </>
  );
}

/** A statement's fingerprint, as a link to the statement. */
export function Fingerprint({ of }: { of: string }) {
  return <a class="fingerprint" href={href("statements", [], { find: of })}>{of.slice(0, 8)}</a>;
}

/** The protocol's version; all of it in its title. */
export function Tls({ text }: { text: string | null }) {
  return text ? <span title={text}>{text.split("/")[0]}</span> : <span class="quiet">–</span>;
}

/** Whether a media query holds, now and later. */
export function useMedia(query: string): boolean {
  const [holds, set] = useState(() => window.matchMedia(query).matches);
  useEffect(() => {
    const media = window.matchMedia(query);
    const listener = () => set(media.matches);
    media.addEventListener("change", listener);
    return () => media.removeEventListener("change", listener);
  }, [query]);
  return holds;
}

export const NARROW = "(max-width: 640px)";

/** What stands where figures will be, or cannot be. */
export function Placeholder({ fault, children }: { fault?: { message: string } | null; children: ComponentChildren }) {
  return (
    <p class="none" role={fault ? "alert" : "status"}>
      {fault ? fault.message : children}
    </p>
  );
}
