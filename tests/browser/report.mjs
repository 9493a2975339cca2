// The report of `pgweir bench`, as its reader sees it: on a screen and on a phone. URL is the file's, PICTURES a folder for screenshots.

import assert from "node:assert/strict";

import { Visit } from "./browser.mjs";

const READERS = {
  wide: { colorScheme: "light" },
  phone: { colorScheme: "dark", viewport: { width: 390, height: 800 } },
};

for (const [name, options] of Object.entries(READERS)) {
  const visit = await Visit.begin(options);
  const { page } = visit;
  await page.goto(process.env.URL);
  await page.getByRole("heading", { name: "overhead", level: 2 }).waitFor();
  for (const title of ["Transactions a second", "Used connections", "Server connections, pgweir", "Latency", "Pool, pgweir"]) {
    const chart = page.locator("figure", { has: page.locator("figcaption", { hasText: title }) }).locator("svg");
    assert.ok((await chart.boundingBox()).height > 50, `${title} has a chart`);
    assert.ok((await chart.locator(".line, .area, .bar").count()) > 0, `${title} shows something`);
  }
  await page.getByText("What the columns say").first().click();
  await page.getByText("transactions a second, as pgbench counts them").waitFor();
  await visit.accessible(`the report, ${name}`);
  await visit.fits(`the report, ${name}`);
  await visit.picture(`report-${name}`);
  await visit.end();
}
