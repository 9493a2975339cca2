// What happens right now, in a sentence that needs no knowledge of poolers.

import type { ClientCounts, ServerCounts } from "./api";
import { counted } from "./format";

export function sentence({ clients, servers }: { clients: ClientCounts; servers: ServerCounts }): string {
  const links = counted(servers.total, "server connection");
  if (clients.total === 0) {
    if (servers.total === 0) return "No client is connected.";
    return `No client is connected; ${links} ${servers.total === 1 ? "is" : "are"} ready.`;
  }
  const people = counted(clients.total, "client");
  if (servers.total === 0 && clients.waiting > 0) return `${people}, and no server connection is open.`;
  if (servers.total === 0) return `${people}, and no server connection is needed.`;
  return `${people} ${clients.total === 1 ? "uses" : "share"} ${links}.`;
}
