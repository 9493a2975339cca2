// Where in the page the reader is, kept in the address behind the #, so that it can be sent to a colleague.

import { useEffect, useState } from "preact/hooks";

export interface Route {
  page: string;
  /** Further parts of the path, decoded. */
  parts: string[];
  query: URLSearchParams;
}

export function parse(hash: string): Route {
  const [path = "", query = ""] = hash.replace(/^#\/?/, "").split("?", 2);
  const [page = "", ...parts] = path.split("/").map(decoded);
  return { page: page || "overview", parts, query: new URLSearchParams(query) };
}

function decoded(part: string): string {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // an address typed by hand
  }
}

/** The address of a page: `href("database", ["shop"])` is `#/database/shop`. */
export function href(page: string, parts: string[] = [], query: Record<string, string | undefined> = {}): string {
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) if (value) words.set(name, value);
  const path = [page, ...parts].map(encodeURIComponent).join("/");
  return `#/${path}${words.size > 0 ? `?${words}` : ""}`;
}

export function useRoute(): Route {
  const [route, set] = useState(() => parse(location.hash));
  useEffect(() => {
    const listener = () => set(parse(location.hash));
    window.addEventListener("hashchange", listener);
    return () => window.removeEventListener("hashchange", listener);
  }, []);
  return route;
}

/** Changes words of the address' query in place; an empty value takes the word away. */
export function requery(route: Route, change: Record<string, string>): void {
  const query: Record<string, string | undefined> = Object.fromEntries(route.query);
  location.replace(href(route.page, route.parts, { ...query, ...change }));
}
