import { expect, test } from "vitest";

import { bytes, count, counted, duration, percent, rate, span } from "../src/format";

test("counts keep three digits that matter", () => {
  expect([0, 950, 12_300, 1_250_000, 4.8e9].map(count)).toEqual(["0", "950", "12,300", "1.25 M", "4.80 G"]);
  expect([0, 0.01, 0.4, 9.96, 12.4].map(rate)).toEqual(["0", "<0.1", "0.4", "10.0", "12"]);
  expect(counted(1, "client")).toBe("1 client");
  expect(counted(2, "database")).toBe("2 databases");
});

test("durations choose their unit", () => {
  expect([0, 85, 1_240, 31_500, 999_999, 3_100_000, 250e6].map(duration)).toEqual(["0", "85 µs", "1.24 ms", "31.5 ms", "1000 ms", "3.10 s", "4 min 10 s"]);
  expect([0, 59, 60, 3_700, 90_061].map(span)).toEqual(["0 s", "59 s", "1 min", "1 h 1 min", "1 d 1 h"]);
});

test("bytes and shares", () => {
  expect([0, 950, 1_240_000, 5e12].map(bytes)).toEqual(["0 B", "950 B", "1.24 MB", "5.00 TB"]);
  expect([0, 0.004, 0.31, 1].map(percent)).toEqual(["0 %", "0.4 %", "31 %", "100 %"]);
});
