import { expect, test } from "vitest";

import { axisWidth, decades, everyNth, short, top } from "../src/parts/figures";
import { dotSize, marks } from "../src/parts/marks";
import { pieces } from "../src/parts/markdown";
import { placeOf } from "../src/place";
import { href, parse } from "../src/route";
import type { ClientCounts, ServerCounts, SlowStatement } from "../src/api";
import { sentence } from "../src/sentence";
import { grouped } from "../src/slow";
import { matches } from "../src/parts/filter";
import { sumClients, sumServers } from "../src/sums";

const clients = (total: number, waiting = 0): ClientCounts => ({ total, active: 0, multiplexed: 0, waiting, idle: total - waiting, pinned: 0, idle_in_transaction: 0, login: 0 });
const servers = (total: number): ServerCounts => ({ total, active: 0, idle: total, used: 0, tested: 0, login: 0, being_canceled: 0, limit: 20 });
const said = (people: number, links: number, waiting = 0) => sentence({ clients: clients(people, waiting), servers: servers(links) });

test("the place is the machine's name and the port for clients", () => {
  expect(placeOf({ machine: "db1", listen: ["0.0.0.0:6432", "10.0.0.5:6432"] })).toBe("db1:6432");
  expect(placeOf({ machine: "db1", listen: ["[::]:6432"] })).toBe("db1:6432");
  expect(placeOf({ machine: "db1", listen: [] })).toBe("db1");
  expect(placeOf({ machine: null, listen: [] })).toBe("");
});

test("the first sentence gives the numbers of clients and of servers", () => {
  expect(said(0, 0)).toBe("No client is connected.");
  expect(said(0, 1)).toBe("No client is connected; 1 server connection is ready.");
  expect(said(0, 3)).toBe("No client is connected; 3 server connections are ready.");
  expect(said(200, 12)).toBe("200 clients share 12 server connections.");
  expect(said(1, 1)).toBe("1 client uses 1 server connection.");
  expect(said(200, 0, 14)).toBe("200 clients, and no server connection is open.");
  expect(said(200, 0)).toBe("200 clients, and no server connection is needed.");
});

test("pools add up", () => {
  expect(sumServers([servers(3), servers(3)])).toMatchObject({ total: 6, idle: 6, limit: 40 });
  expect(sumServers([servers(3), { ...servers(3), limit: 0 }]).limit).toBe(0);
  const busy = { ...clients(4, 1), multiplexed: 1, idle_in_transaction: 2 };
  expect(sumClients([{ ...busy, pinned: null }, { ...busy, pinned: 1 }])).toEqual({ ...clients(8, 2), multiplexed: 2, idle_in_transaction: 4, pinned: 1 });
});

test("marks stand for as many as must be, and every state has one", () => {
  expect([1, 240, 241, 480, 1000, 10_000].map((people) => dotSize(people, 240))).toEqual([1, 1, 2, 2, 5, 50]);
  expect(marks([["active", 3], ["waiting", 0], ["idle", 97]], 10)).toEqual(["active", ...Array(10).fill("idle")]);
});

test("a value axis is as wide as its longest label", () => {
  expect([axisWidth(null), axisWidth(["0", null, "20,000"])]).toEqual([58, 58]);
  // "1 min 15 s" in the axis' font of 12 pixels is 62 pixels wide, and was cut to "min 15 s".
  expect(axisWidth(["0", "1 min 15 s"])).toBeGreaterThanOrEqual(62 + 12);
});

test("axes end on round numbers and say them shortly", () => {
  expect([top(0, 5), top(93, 5), top(1000, 5), top(null, 100)]).toEqual([6, 120, 1200, 120]);
  expect(["40.0 ms", "5.00 MB", "2.50 MB", "20,000", "100 ms"].map(short)).toEqual(["40 ms", "5 MB", "2.5 MB", "20,000", "100 ms"]);
  expect(everyNth(100, 4)).toEqual([99, 74, 49, 24]);
});

test("logarithmic axes end on powers of ten", () => {
  expect(decades(120, 4_000, 100)).toEqual([100, 10_000]);
  expect(decades(1_000, 1_000, 100)).toEqual([100, 1_000]);
  expect(decades(null, null, 100)).toEqual([10, 100]);
  expect(decades(0.2, 5, 1)).toEqual([1, 10]);
});

test("slow statements with one text are one", () => {
  const slow = (text: string | null, total_us: number, more: Partial<SlowStatement> = {}): SlowStatement => ({ time_s: 1, database: "shop", user: "web", application_name: "", text, total_us, wait_us: 0, server_us: total_us, client_us: 0, rows: 1, bytes: 1, failed: false, ...more });
  const groups = grouped([slow("a", 10), slow("b", 50), slow("a", 30, { time_s: 9, failed: true, application_name: "x" }), slow("a", 5, { user: "other" }), slow(null, 1)]);
  expect(groups.map((one) => [one.text, one.user, one.count, one.failed, one.worst.total_us, one.mean_us, one.last_s])).toEqual([
    ["b", "web", 1, 0, 50, 50, 1],
    ["a", "web", 2, 1, 30, 20, 9],
    ["a", "other", 1, 0, 5, 5, 1],
    [null, "web", 1, 0, 1, 1, 1],
  ]);
  expect(groups[1]?.applications).toEqual(["x"]);
});

test("a search finds all its words, in any order and case", () => {
  expect(matches("UPDATE accounts SET balance", "Set accounts")).toBe(true);
  expect(matches("UPDATE accounts SET balance", "accounts delete")).toBe(false);
  expect(matches("anything", "")).toBe(true);
});

test("addresses survive any name", () => {
  const name = "a/b?c=d#e %";
  expect(parse(href("database", [name, "ü"])).parts).toEqual([name, "ü"]);
  expect(parse(href("clients", [], { database: name })).query.get("database")).toBe(name);
  expect(parse("#/%zz").page).toBe("%zz");
  expect(parse("").page).toBe("overview");
});

test("documentation's Markdown, and nothing else of it", () => {
  expect(pieces("a `b` **c** [d](https://e.example/f) <i>")).toEqual([
    { kind: "text", text: "a " },
    { kind: "code", text: "b" },
    { kind: "text", text: " " },
    { kind: "bold", text: "c" },
    { kind: "text", text: " " },
    { kind: "link", text: "d", to: "https://e.example/f" },
    { kind: "text", text: " <i>" },
  ]);
  expect(pieces("[x](javascript:alert)")).toEqual([{ kind: "text", text: "[x](javascript:alert)" }]);
});
