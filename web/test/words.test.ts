import { expect, test } from "vitest";

import { short, top, everyNth } from "../src/parts/figures";
import { dotSize, marks } from "../src/parts/marks";
import { pieces } from "../src/parts/markdown";
import { href, parse } from "../src/route";
import { sentences } from "../src/sentence";
import { sumClients, sumServers } from "../src/sums";

type Moment = Parameters<typeof sentences>[0];

function moment(total: number, servers: number, waiting = 0, wait_oldest_us = 0, paused_databases: string[] = []): Moment {
  return {
    clients: { total, active: 0, waiting, idle: total - waiting, pinned: 0, login: 0 },
    servers: { total: servers, active: 0, idle: servers, used: 0, tested: 0, login: 0, being_canceled: 0, limit: 20 },
    queue: { waiting, wait_oldest_us },
    process: { state: "active", paused_databases },
  };
}

const said = (now: Moment) => sentences(now).map((one) => one.text).join(" ");

test("the first sentence tells the story", () => {
  expect(said(moment(0, 0))).toBe("Nobody is connected.");
  expect(said(moment(0, 3))).toBe("Nobody is connected; 3 server connections are kept ready.");
  expect(said(moment(200, 12))).toBe("200 clients share 12 server connections. Nobody waits right now.");
  expect(said(moment(1, 1))).toBe("1 client uses 1 server connection. Nobody waits right now.");
  expect(said(moment(200, 20, 14, 1_200_000))).toBe("200 clients share 20 server connections. 14 wait for a free one, the longest for 1.20 s.");
});

test("only what one should act on asks for attention", () => {
  expect(sentences(moment(200, 0, 14, 900_000)).map((one) => one.tone)).toEqual(["attention", "attention"]);
  expect(said(moment(200, 0))).toBe("200 clients, and no server connection is needed. Nobody waits right now.");
  expect(sentences(moment(200, 20, 14, 2_000)).map((one) => one.tone)).toEqual(["calm", "calm"]);
  expect(sentences(moment(200, 20, 14, 900_000)).at(-1)?.tone).toBe("attention");
  expect(sentences(moment(200, 0, 14, 900_000, ["shop"])).at(-1)).toEqual({ text: "shop is paused: clients wait until that is resumed.", tone: "attention" });
});

test("pools add up", () => {
  const servers = { total: 3, active: 1, idle: 2, used: 0, tested: 0, login: 0, being_canceled: 0, limit: 5 };
  expect(sumServers([servers, servers])).toMatchObject({ total: 6, idle: 4, limit: 10 });
  expect(sumServers([servers, { ...servers, limit: 0 }]).limit).toBe(0);
  const clients = { total: 4, active: 1, waiting: 1, idle: 2, pinned: null, login: 0 };
  expect(sumClients([clients, { ...clients, pinned: 1 }])).toEqual({ total: 8, active: 2, waiting: 2, idle: 4, pinned: 1, login: 0 });
});

test("marks stand for as many as must be, and nobody is left out", () => {
  expect([1, 240, 241, 480, 1000, 10_000].map((people) => dotSize(people, 240))).toEqual([1, 1, 2, 2, 5, 50]);
  expect(marks([["active", 3], ["waiting", 0], ["idle", 97]], 10)).toEqual(["active", ...Array(10).fill("idle")]);
});

test("axes end on round numbers and say them shortly", () => {
  expect([top(0, 5), top(93, 5), top(1000, 5), top(null, 100)]).toEqual([6, 120, 1200, 120]);
  expect(["40.0 ms", "5.00 MB", "2.50 MB", "20,000", "100 ms"].map(short)).toEqual(["40 ms", "5 MB", "2.5 MB", "20,000", "100 ms"]);
  expect(everyNth(100, 4)).toEqual([99, 74, 49, 24]);
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
