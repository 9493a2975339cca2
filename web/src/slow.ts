// Slow statements, those with the same text as one.

import type { SlowStatement } from "./api";

export interface SlowGroup {
  /** Null: its text is not known. */
  text: string | null;
  database: string;
  user: string;
  applications: string[];
  count: number;
  failed: number;
  /** The longest of them. */
  worst: SlowStatement;
  mean_us: number;
  /** When the last one ended. */
  last_s: number;
}

/** By text, database and user; the group that took most time comes first. */
export function grouped(slow: SlowStatement[]): SlowGroup[] {
  const groups = new Map<string, SlowStatement[]>();
  for (const one of slow) {
    const key = JSON.stringify([one.text, one.database, one.user]);
    groups.set(key, [...(groups.get(key) ?? []), one]);
  }
  const total = (group: SlowGroup) => group.mean_us * group.count;
  return [...groups.values()].map(together).sort((a, b) => total(b) - total(a));
}

function together(members: SlowStatement[]): SlowGroup {
  const worst = members.reduce((longest, one) => (one.total_us > longest.total_us ? one : longest));
  const applications = new Set(members.map((one) => one.application_name).filter((name) => name !== ""));
  return {
    text: worst.text,
    database: worst.database,
    user: worst.user,
    applications: [...applications].sort(),
    count: members.length,
    failed: members.filter((one) => one.failed).length,
    worst,
    mean_us: members.reduce((sum, one) => sum + one.total_us, 0) / members.length,
    last_s: Math.max(...members.map((one) => one.time_s)),
  };
}
