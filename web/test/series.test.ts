import { expect, test } from "vitest";

import type { Series } from "../src/api";
import { pauseMs } from "../src/pause";
import { column, EMPTY, joined, sum } from "../src/series";

const some = (times: number[], step_s = 1): Series => ({ step_s, time_s: times, columns: { a: times.map((time) => time * 10) } });

test("what is new is joined, what is old falls off", () => {
  const first = joined(EMPTY, some([1, 2, 3, 4]), 5);
  const second = joined(first, some([5, 6, 7, 8]), 5);
  expect(second.time_s).toEqual([3, 4, 5, 6, 7, 8]);
  expect(second.columns["a"]).toEqual([30, 40, 50, 60, 70, 80]);
});

test("steps that are known are not taken twice", () => {
  const first = joined(EMPTY, some([1, 2, 3]), 60);
  expect(joined(first, some([2, 3, 4]), 60).time_s).toEqual([1, 2, 3, 4]);
  expect(joined(first, some([]), 60)).toBe(first);
});

test("another step begins a new series", () => {
  expect(joined(some([1, 2, 3]), some([10, 20], 10), 600).time_s).toEqual([10, 20]);
});

test("a column that appears later has gaps before", () => {
  const later: Series = { step_s: 1, time_s: [3], columns: { a: [30], b: [3] } };
  const both = joined(some([1, 2]), later, 60);
  expect(both.columns["b"]).toEqual([null, null, 3]);
  expect(column(both, "c")).toEqual([null, null, null]);
});

test("sums keep gaps as gaps", () => {
  expect(sum([1, null, null], [2, 5, null])).toEqual([3, 5, null]);
});

test("questions keep the beat, and become rarer while they fail", () => {
  expect([0, 300, 990, 4000].map((took) => pauseMs(1000, took, 0))).toEqual([1000, 700, 100, 100]);
  expect([1, 2, 3, 4, 5, 50].map((faults) => pauseMs(1000, 10, faults))).toEqual([1000, 2000, 4000, 8000, 10_000, 10_000]);
  expect(pauseMs(60_000, 10, 3)).toBe(60_000);
});
