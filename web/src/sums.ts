// Several pools as one.

import type { ClientCounts, ServerCounts } from "./api";

export function sumClients(all: ClientCounts[]): ClientCounts {
  const total: ClientCounts = { total: 0, active: 0, multiplexed: 0, waiting: 0, idle: 0, pinned: null, idle_in_transaction: 0, login: 0 };
  for (const one of all) {
    total.total += one.total;
    total.active += one.active;
    total.multiplexed += one.multiplexed;
    total.idle_in_transaction += one.idle_in_transaction;
    total.waiting += one.waiting;
    total.idle += one.idle;
    total.login += one.login;
    if (one.pinned !== null) total.pinned = (total.pinned ?? 0) + one.pinned;
  }
  return total;
}

/** One pool without a limit means that the sum has none. */
export function sumServers(all: ServerCounts[]): ServerCounts {
  const names = ["total", "active", "idle", "used", "tested", "login", "being_canceled", "limit"] as const;
  const total = Object.fromEntries(names.map((name) => [name, all.reduce((sum, one) => sum + one[name], 0)])) as unknown as ServerCounts;
  if (all.some((one) => one.limit === 0)) total.limit = 0;
  return total;
}
