// The pictures of the documents: `node pictures.mjs SCENE`. URL is the pooler's, PICTURES the folder for them.

import assert from "node:assert/strict";

import { Visit } from "./browser.mjs";

const DESKTOP = { viewport: { width: 1280, height: 1000 } };
const PHONE = { viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true, deviceScaleFactor: 2 };
/** So long the charts fill. */
const FILLED_MS = 45_000;

/** What each scene's verdict says, and the pages that are shown of it. */
const SCENES = {
  cluster: { verdict: /^node m1 of cluster main is down:$/, pages: ["clusters"], filled: 1_000 },
  healthy: { verdict: /^No problems found\.$/, pages: ["overview", "details"] },
  overloaded: { verdict: /^shop: 10 of 10 servers busy, \d+ clients waiting, \d+ % of the time is queueing:$/, pages: ["overview", "clients", "clients?state=idle_in_transaction", "applications", "servers", "statements"] },
  down: { verdict: /^database old: cannot connect: .*refused.*:$/, pages: ["overview", "database/old"] },
};

async function take(name, { verdict, pages }, look, options, wait) {
  const visit = await Visit.begin({ ...options });
  const { page } = visit;
  await visit.go();
  await visit.signIn("admin");
  await page.getByText(verdict).waitFor().catch(async (fault) => {
    await visit.picture(`docs-${name}-failed`);
    throw fault;
  });
  await page.waitForTimeout(wait);
  for (const path of pages) {
    await page.goto(`${process.env.URL}/#/${path}`);
    await visit.until(`${path} is filled`, async () => (await page.locator("main h2").count()) > 0 && !(await page.getByText("Loading …").isVisible()));
    if (path === "overview") await page.getByText(verdict).waitFor();
    await page.waitForTimeout(500);
    await visit.fits(path);
    await visit.picture(`docs-${name}-${path.replace(/[/?=]/g, "-")}-${look}`, { fullPage: path !== "clients" });
  }
  await visit.end();
}

const name = process.argv[2];
const scene = SCENES[name];
assert.ok(scene, `no scene is called ${name}; there are: ${Object.keys(SCENES).join(", ")}`);
try {
  await take(name, scene, "light", { ...DESKTOP, colorScheme: "light" }, scene.filled ?? FILLED_MS);
  await take(name, scene, "dark", { ...DESKTOP, colorScheme: "dark" }, 0);
  await take(name, scene, "phone", { ...PHONE, colorScheme: "light" }, 0);
  process.exit(0);
} catch (fault) {
  console.error(fault.stack ?? fault);
  process.exit(1);
}
