import type { Overview } from "./api";

/** Where the pooler is: its machine's name and the port for clients. Empty for readers who may not see names. */
export function placeOf({ machine, listen }: Pick<Overview["process"], "machine" | "listen">): string {
  if (!machine) return "";
  const port = listen?.[0]?.split(":").at(-1);
  return port === undefined ? machine : `${machine}:${port}`;
}
