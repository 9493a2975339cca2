import { expect, test } from "vitest";

import type { LogLine } from "../src/api";
import { followed, lastOf } from "../src/log";

const lines = (...ids: number[]): LogLine[] => ids.map((id) => ({ id, time_s: id, level: "log", message: `line ${id}` }));
const ids = (of: LogLine[]) => of.map((line) => line.id);

test("new lines come before those that were there", () => {
  expect(lastOf([])).toBeUndefined();
  expect(ids(followed([], lines(3, 2, 1)))).toEqual([3, 2, 1]);
  expect(ids(followed(lines(3, 2), lines(5, 4)))).toEqual([5, 4, 3, 2]);
  const same = lines(3, 2);
  expect(followed(same, [])).toBe(same);
});

test("a pgweir that was started again replaces the lines of the one before", () => {
  expect(ids(followed(lines(900, 899), lines(2, 1)))).toEqual([2, 1]);
});

test("the oldest lines fall out", () => {
  const many = lines(...Array.from({ length: 1_000 }, (_, at) => 1_000 - at));
  const joined = followed(many, lines(1_002, 1_001));
  expect([joined.length, lastOf(joined), joined.at(-1)?.id]).toEqual([1_000, 1_002, 3]);
});
