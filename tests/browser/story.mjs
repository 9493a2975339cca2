// Stories of readers of the dashboard: `node story.mjs NAME`. URL is the pooler's, PICTURES a folder for screenshots.
// pgbench runs through the pooler meanwhile, as alice on the database bench; the database old has no server.

import assert from "node:assert/strict";
import { hostname } from "node:os";

import { Visit } from "./browser.mjs";

const PAGES = ["Overview", "Clients", "Applications", "Servers", "Statements", "Cache", "Details", "Settings", "Log"];

const STORIES = {
  /** A first visit, without signing in. */
  async stranger() {
    const visit = await Visit.begin({ colorScheme: "light" });
    const { page } = visit;
    await visit.go();
    await page.getByText(/\d+ clients share \d+ server connections?\./).waitFor();
    const before = await visit.until("transactions are counted", () => visit.vital("transactions per second"));
    await visit.until("figures move", async () => (await visit.vital("transactions per second")) !== before);
    await page.getByText(/^Many clients, few connections$/).waitFor();
    await visit.until("the chart has a line", async () => (await legend(page, "server connections")) > 0);
    await page.getByRole("table").getByText("bench").waitFor();
    assert.equal(await page.getByText("alice").count(), 0, "a stranger is shown no names of users");
    await visit.accessible("first screen, light");
    await visit.picture("overview-light");
    await page.getByRole("button", { name: "Hold" }).click();
    const held = await page.locator(".legend .figure").allInnerTexts();
    await page.waitForTimeout(1_500);
    assert.deepEqual(await page.locator(".legend .figure").allInnerTexts(), held, "held figures stand still");
    await page.getByRole("button", { name: "Go on" }).click();
    assert.equal(await page.getByRole("navigation").getByRole("link", { name: "Clusters" }).count(), 0, "there is no cluster");
    for (const name of PAGES.slice(1)) {
      await visit.follow(name);
      await visit.until(`${name} is filled`, async () => !(await page.getByText("Loading …").isVisible()));
      assert.equal(await page.getByText("alice").count(), 0, `a stranger is shown no names of users on ${name}`);
      await visit.accessible(name);
      await visit.picture(`${name.toLowerCase()}-stranger`, { fullPage: name !== "Settings" });
    }
    assert.equal(await page.getByRole("button", { name: "Pause" }).count(), 0);
    assert.equal(await post(page, "actions/pause", { database: "bench" }), 401, "a stranger may not act");
    await visit.end();
  },

  /** A user of stats_users sees everything, and changes nothing. */
  async reader() {
    const visit = await Visit.begin({ colorScheme: "dark" });
    const { page } = visit;
    await visit.go();
    await visit.signIn("stats", "wrong");
    await page.getByRole("alert").getByText("User or password is wrong.").waitFor();
    await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
    await visit.signIn("stats");
    await page.getByText("stats", { exact: true }).waitFor();
    await page.getByRole("table").getByText("alice").first().waitFor();
    const place = new RegExp(`${hostname().replaceAll(".", "\\.")}:\\d+`);
    await page.locator("header").getByText(place).waitFor();
    assert.match(await page.title(), place, "the tab says which pooler it is");
    await visit.accessible("first screen, dark");
    await visit.picture("overview-dark");
    await visit.follow("Clients");
    await page.getByRole("row").filter({ hasText: "alice" }).first().waitFor();
    await visit.picture("clients-dark", { fullPage: false });
    await page.getByLabel("Application").selectOption("pgbench");
    await page.getByText(/^\d+ clients$/).waitFor();
    await page.getByLabel("State", { exact: true }).selectOption("cancel");
    await page.getByText("No client matches.").waitFor();
    await page.getByRole("button", { name: "Show all" }).click();
    await page.getByRole("row").filter({ hasText: "alice" }).first().getByRole("button", { name: /^More about client/ }).click();
    await page.getByRole("link", { name: "Clients of user alice" }).waitFor();
    assert.equal(await page.getByRole("button", { name: /Drop/ }).count(), 0, "a reader has nothing in a menu that acts");
    await visit.accessible("a row's menu");
    await page.keyboard.press("Escape");
    await page.getByRole("link", { name: "Clients of user alice" }).waitFor({ state: "detached" });
    await visit.follow("Applications");
    const row = page.getByRole("row").filter({ hasText: "pgbench" });
    await row.getByText("alice").waitFor();
    assert.equal(await row.getByRole("cell").first().innerText(), "30", "pgbench's clients");
    await visit.accessible("Applications, dark");
    await visit.picture("applications-dark", { fullPage: false });
    await row.getByRole("link", { name: "pgbench" }).click();
    await page.getByText(/^30 clients$/).waitFor();
    assert.equal(await page.getByLabel("Application").inputValue(), "pgbench");
    await visit.follow("Log");
    await page.getByRole("row").filter({ hasText: /login attempt: db=bench user=alice/ }).first().waitFor();
    // The log is followed: what is written from now on appears without a click.
    const reloads = page.getByRole("row").filter({ hasText: "RELOAD command issued" });
    assert.equal(await reloads.count(), 0);
    const headers = { authorization: `Basic ${btoa("admin:pw-of-admin")}`, "X-CSRF-Token": "1", "Content-Type": "application/json" };
    assert.equal((await fetch(`${process.env.URL}/api/v1/actions/reload`, { method: "POST", headers, body: "{}" })).status, 200);
    await reloads.waitFor();
    await page.getByLabel("Level").selectOption("notable");
    await page.getByRole("row").filter({ hasText: "login attempt" }).first().waitFor({ state: "detached" });
    await visit.accessible("Log, dark");
    await visit.follow("Statements");
    await page.getByRole("row").filter({ hasText: "select abalance from pgbench_accounts where aid = ?" }).first().waitFor();
    await page.getByLabel("Text or fingerprint").fill("nothing like this");
    await page.getByText("No statement matches.").waitFor();
    await page.getByLabel("Text or fingerprint").fill("abalance where");
    await page.getByRole("row").filter({ hasText: "select abalance" }).first().waitFor();
    await visit.accessible("Statements, dark");
    await visit.picture("statements-dark", { fullPage: false });
    await visit.follow("Settings");
    await page.getByLabel("Find").fill("default_pool_size");
    await page.locator(".settings dd.value").getByText("4", { exact: true }).waitFor();
    await visit.accessible("Settings, dark");
    assert.equal(await page.getByRole("button", { name: /Pause|Reload|Kill|Drop/ }).count(), 0, "a reader has no buttons that act");
    assert.equal(await post(page, "actions/pause", { database: "bench" }), 403, "a reader may not act");
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByRole("button", { name: "Sign in" }).waitFor();
    await visit.end();
  },

  /** An admin pauses a database, sees its clients wait, and resumes it. */
  async admin() {
    const visit = await Visit.begin({ colorScheme: "light" });
    const { page } = visit;
    await visit.go();
    await visit.signIn("admin");
    await page.getByRole("table").getByRole("link", { name: "bench" }).first().click();
    await page.getByRole("heading", { name: "bench", exact: true }).waitFor();
    await press(page, "Pause");
    await page.getByRole("dialog").getByText(/Clients stay connected and wait/).waitFor();
    await visit.accessible("a question");
    await visit.picture("question");
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await press(page, "Pause");
    await confirm(page, "Pause");
    await page.getByRole("button", { name: "Resume" }).waitFor();
    await page.getByRole("heading", { name: /bench.*paused/ }).waitFor();
    await visit.picture("database-paused");
    await visit.follow("Overview");
    await page.getByText(/bench is paused, \d+ clients waiting:/).waitFor();
    await visit.until("all clients of the load wait", async () => (await legend(page, "waiting")) > 0);
    await visit.picture("overview-paused");
    await page.getByRole("table").getByRole("link", { name: "bench" }).first().click();
    await press(page, "Resume");
    await confirm(page, "Resume");
    await page.getByRole("button", { name: "Pause" }).waitFor();
    await visit.until("work goes on", async () => (await legend(page, "transactions")) > 0);
    await visit.picture("database");
    await visit.follow("Settings");
    await press(page, "Reload");
    await confirm(page, "Reload");
    await visit.follow("Clients");
    await page.getByRole("row").filter({ hasText: "alice" }).first().getByRole("button", { name: /^More about client/ }).click();
    await page.getByRole("button", { name: "Drop client …" }).click();
    await page.getByRole("dialog").getByText(/is disconnected at once/).waitFor();
    await page.keyboard.press("Escape");
    await visit.end();
  },

  /** The same on a phone; then the pooler can not be reached for a while. */
  async phone() {
    const visit = await Visit.begin({ colorScheme: "dark", viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true });
    const { page } = visit;
    await visit.go();
    await visit.signIn("stats");
    await page.getByText(/\d+ clients share/).waitFor();
    await page.locator(".cards").getByText("alice").waitFor();
    for (const name of PAGES) {
      await visit.follow(name);
      await visit.until(`${name} is filled`, async () => !(await page.getByText("Loading …").isVisible()));
      await visit.fits(name);
      await visit.accessible(`${name}, narrow`);
      await visit.picture(`${name.toLowerCase()}-narrow`, { fullPage: name !== "Settings" });
    }
    await visit.go();
    await page.route("**/api/**", (route) => route.abort());
    await page.getByText(/pgweir does not answer; trying again\./).waitFor();
    await page.getByText(/What you see is from/).waitFor();
    await visit.accessible("not reachable");
    await visit.fits("not reachable");
    // The button asks at once; the page asks by itself too, and once it is answered the button is gone: it is pressed before that.
    const asked = page.waitForRequest("**/api/**");
    await page.getByRole("button", { name: "Try now" }).click();
    await asked;
    await page.unroute("**/api/**");
    await page.getByText(/pgweir does not answer; trying again/).waitFor({ state: "detached" });
    await visit.end();
  },

  /** The verdict names what is wrong, also to a reader that sees no names; the page of a database without a server says why. */
  async trouble() {
    const visit = await Visit.begin({ colorScheme: "light" });
    const { page } = visit;
    await visit.go();
    const queue = page.getByText(/^bench: \d+ of 4 servers busy, \d+ clients? waiting, \d+ % of the time is queueing:$/);
    await queue.waitFor();
    await page.getByText(/^database old: cannot connect, next attempt .*:$/).waitFor();
    assert.equal(await page.getByText(/refused/).count(), 0, "a stranger is shown no error, which may have an address in it");
    await visit.accessible("findings");
    await visit.signIn("stats");
    await page.getByText(/^database old: cannot connect: .*refused.*, next attempt .*:$/).waitFor();
    await visit.picture("overview-trouble", { fullPage: false });
    await page.getByRole("link", { name: "Look at bench" }).click();
    await page.getByRole("heading", { name: "bench", exact: true }).waitFor();
    await queue.waitFor();
    await visit.accessible("a finding on its database's page");
    await visit.follow("Overview");
    await page.getByRole("link", { name: "Look at old" }).click();
    await page.getByRole("heading", { name: "pgweir cannot connect to the server" }).waitFor();
    await page.locator(".error-text").getByText(/refused/).waitFor();
    assert.equal(await page.locator(".chart").count(), 0, "no empty charts beside the error");
    await visit.accessible("a database that is down");
    await visit.picture("database-down");
    await visit.end();
  },

  /** A cluster of a primary and a standby. A stranger sees it without addresses; an admin drains the primary, and attaches it. */
  async cluster() {
    const visit = await Visit.begin({ colorScheme: "light" });
    const { page } = visit;
    await visit.go("database/app");
    await page.getByText(/\d+ server connections for each user and node/).waitFor();
    await visit.go();
    await visit.follow("Clusters");
    await page.getByText("m1 is the primary, in epoch 1.").waitFor();
    const nodes = page.getByRole("region", { name: "Nodes of main" });
    await nodes.getByRole("row").filter({ hasText: "m2" }).getByText("standby").waitFor();
    await page.locator("svg.topology").getByText("not behind").waitFor();
    assert.equal(await page.getByText("127.0.0.1").count(), 0, "a stranger is shown no addresses");
    assert.equal(await post(page, "actions/drain", { cluster: "main", node: "m1" }), 401, "a stranger may not act");
    await visit.accessible("Clusters, light");
    await visit.signIn("stats");
    await nodes.getByText(/^127\.0\.0\.1:\d+$/).first().waitFor();
    assert.equal(await page.getByRole("button", { name: /More about node|Recheck/ }).count(), 0, "a reader has no buttons that act");
    await page.getByRole("button", { name: "Sign out" }).click();
    await visit.signIn("admin");
    await choose(page, "m1", "Drain …");
    await page.getByRole("dialog").getByText(/clients wait until another node is/).waitFor();
    await confirm(page, "Drain");
    await page.getByText(/main has had no primary/).waitFor();
    await page.getByText("m1 is draining").waitFor();
    await visit.accessible("a cluster that is held");
    await visit.picture("clusters-held");
    await visit.follow("Overview");
    await page.getByText(/^cluster main has no primary.*:$/).waitFor();
    await page.getByRole("link", { name: "Look at main" }).first().click();
    await choose(page, "m1", "Attach …");
    await confirm(page, "Attach");
    await page.getByText(/m1 is the primary, in epoch \d\./).waitFor();
    await choose(page, "m2", "Make it the primary …");
    await page.getByRole("dialog").getByText(/New transactions of main wait until m2 is the primary/).waitFor();
    await visit.accessible("the question of a switchover");
    await confirm(page, "Switch over");
    await page.getByText(/A switchover to m2: step 3, stop the primary and promote m2 now/).waitFor();
    await visit.accessible("a switchover that is under way");
    await visit.picture("clusters-switchover");
    await press(page, "Cancel the switchover");
    await confirm(page, "Cancel the switchover");
    await page.getByText("The last switchover of main did not take place.").waitFor();
    await page.getByText(/an operator has canceled the switchover/).waitFor();
    assert.equal(await page.getByRole("button", { name: /by force/ }).count(), 0, "force is not offered");
    await page.getByText(/m1 is the primary, in epoch \d\./).waitFor();
    await press(page, "Recheck");
    await confirm(page, "Recheck");
    await page.getByText(/m1 is the primary, in epoch \d\./).waitFor();
    await visit.end();
  },

  /** The same after its primary was lost and its standby was promoted; a page that is opened only now sees what happened. */
  async promoted() {
    for (const options of [{ colorScheme: "dark" }, { colorScheme: "light", viewport: { width: 390, height: 844 }, hasTouch: true, isMobile: true }]) {
      const visit = await Visit.begin(options);
      const { page } = visit;
      await visit.go("clusters");
      await page.getByText(/m2 is the primary, in epoch \d\./).first().waitFor();
      // What was in between is seen if it lasted until the next look.
      await page.getByText(/m2 is primary, was [a-z]+/).waitFor();
      await page.getByText(/m1 is down, was [a-z]+/).waitFor();
      await visit.fits("Clusters");
      assert.deepEqual(await cutOff(page), [], "no text of the picture is cut off");
      await visit.accessible("Clusters after a promotion");
      await visit.picture(options.isMobile ? "clusters-narrow" : "clusters-dark");
      await visit.end();
    }
  },

  /** With http_anonymous = none nothing is shown without signing in. */
  async locked() {
    const visit = await Visit.begin({ colorScheme: "dark" });
    const { page } = visit;
    await page.goto(process.env.URL);
    await page.getByText("Figures are shown to those who sign in.").waitFor();
    await visit.accessible("locked");
    await visit.picture("locked");
    await visit.signIn("stats");
    await page.getByText(/\d+ clients share/).waitFor();
    await page.getByRole("button", { name: "Sign out" }).click();
    await page.getByText("Figures are shown to those who sign in.").waitFor();
    assert.equal(await page.getByText(/\d+ clients share/).count(), 0);
    await visit.end();
  },

  /** The query cache at work: alice reads the same all the time, the pool of the database kept cannot be served. */
  async cache() {
    const visit = await Visit.begin({ colorScheme: "light" });
    const { page } = visit;
    await visit.go("cache");
    await page.getByText("Statements are shown to those who sign in.").waitFor();
    assert.equal(await page.getByText("alice").count(), 0, "a stranger is shown no names of users");
    await visit.accessible("Cache, to a stranger");
    await visit.signIn("stats");
    const hits = await visit.until("hits are counted", () => visit.vital("statements answered without PostgreSQL"));
    await visit.until("and move", async () => (await visit.vital("statements answered without PostgreSQL")) !== hits);
    await visit.until("time is saved", () => visit.vital("of PostgreSQL's time saved"));
    await visit.until("the chart has a line", async () => (await legend(page, "hits")) > 0);
    await visit.until("the hit ratio is drawn", async () => (await legend(page, "hit ratio")) > 50);
    await page.getByRole("region", { name: "Rules" }).getByText("it is 10 min old").waitFor();
    await page.getByRole("region", { name: "Not served" }).getByRole("row").filter({ hasText: "kept, alice" }).getByText(/pool_mode=session/).waitFor();
    const gains = page.getByRole("region", { name: "Statements that gain most" });
    const kept = gains.getByRole("row").filter({ hasText: "select value from counted where id = ?" });
    await kept.getByText("nothing", { exact: true }).waitFor();
    await gains.getByRole("row").filter({ hasText: "select random()" }).getByText(/random/).last().waitFor();
    await page.getByRole("region", { name: "What drops answers" }).getByText("Too old").waitFor();
    await visit.accessible("Cache, light");
    await visit.picture("cache-light");
    await page.emulateMedia({ colorScheme: "dark" });
    await visit.accessible("Cache, dark");
    await visit.picture("cache-dark");
    await page.setViewportSize({ width: 390, height: 844 });
    await visit.fits("Cache");
    await visit.accessible("Cache, on a phone");
    await visit.picture("cache-phone");
    await page.setViewportSize({ width: 1280, height: 900 });
    await kept.getByRole("link").click();
    await page.getByRole("heading", { name: "Statements", exact: true }).waitFor();
    await page.getByRole("row").filter({ hasText: "select value from counted" }).first().waitFor();
    await visit.end();
  },

  /** A database whose changes are followed: alice reads, and another client writes without the pooler. */
  async cache_followed() {
    const visit = await Visit.begin({ colorScheme: "light" });
    const { page } = visit;
    await visit.go("cache");
    const followed = page.getByRole("region", { name: "Followed databases" }).getByRole("row").filter({ hasText: "app" });
    await followed.getByText("following", { exact: true }).waitFor();
    await visit.signIn("stats");
    await page.getByRole("region", { name: "Rules" }).getByText("its tables change", { exact: true }).waitFor();
    const drop = page.getByRole("region", { name: "What drops answers" }).getByRole("row").filter({ hasText: "A table was changed" });
    await drop.getByText(/[1-9]\d* of these answers depended on one row/).waitFor();
    await visit.until("answers are compared", () => visit.vital("kept answers were compared with PostgreSQL's"));
    assert.equal(await page.getByText(/kept answers? (was|were) wrong/).count(), 0);
    await visit.accessible("Cache, followed, light");
    await visit.picture("cache-followed-light");
    await page.emulateMedia({ colorScheme: "dark" });
    await visit.accessible("Cache, followed, dark");
    await visit.picture("cache-followed-dark");
    // A pooler that gives wrong answers cannot be had: the figure is changed on its way.
    await page.route("**/api/v1/cache", async (route) => {
      const response = await route.fetch();
      const json = await response.json();
      json.pools[0].wrong = 3;
      await route.fulfill({ response, json });
    });
    const notice = page.locator(".notice").filter({ hasText: "3 kept answers were wrong" });
    await notice.getByText(/Set query_cache = off and RELOAD/).waitFor();
    await visit.accessible("Cache, wrong answers, dark");
    await visit.picture("cache-wrong-dark");
    await page.emulateMedia({ colorScheme: "light" });
    await visit.accessible("Cache, wrong answers, light");
    await visit.picture("cache-wrong-light");
    await page.unrouteAll({ behavior: "wait" });
    await notice.waitFor({ state: "detached" });
    await visit.end();
  },

  /** A database whose changes cannot be followed: the role alice may not read them. */
  async cache_not_followed() {
    const visit = await Visit.begin({ colorScheme: "light" });
    const { page } = visit;
    await visit.go("cache");
    const followed = page.getByRole("region", { name: "Followed databases" }).getByRole("row").filter({ hasText: "app" });
    await followed.getByText("Shown to those who sign in.").waitFor();
    assert.equal(await page.getByText("alice").count(), 0, "a stranger is shown no names of roles");
    await visit.accessible("Cache, not followed, to a stranger");
    await visit.signIn("stats");
    // Between two tries the state is "opening" for a moment.
    await followed.filter({ hasText: 'ALTER ROLE "alice" REPLICATION' }).getByText("off", { exact: true }).waitFor();
    await page.getByRole("region", { name: "Statements that gain most" }).getByText("changes are not followed", { exact: true }).waitFor();
    await visit.accessible("Cache, not followed, light");
    await visit.picture("cache-not-followed-light");
    await page.emulateMedia({ colorScheme: "dark" });
    await visit.accessible("Cache, not followed, dark");
    await visit.picture("cache-not-followed-dark");
    await page.setViewportSize({ width: 390, height: 844 });
    await visit.fits("Cache, not followed");
    await page.getByRole("list", { name: "Followed databases" }).getByText(/ALTER ROLE "alice" REPLICATION/).waitFor();
    await visit.accessible("Cache, not followed, on a phone");
    await visit.picture("cache-not-followed-phone", { fullPage: false });
    await visit.end();
  },

  /** A cache that is off. */
  async cache_off() {
    const visit = await Visit.begin({ colorScheme: "dark" });
    const { page } = visit;
    await visit.go("cache");
    await page.getByText(/^The cache is off\./).waitFor();
    await visit.signIn("stats");
    const gains = page.getByRole("region", { name: "Statements that gain most" });
    await gains.getByRole("row").filter({ hasText: "select value from counted" }).getByText("the cache is off").waitFor();
    await page.getByText(/Settings alone stand in the way of/).waitFor();
    assert.equal(await page.getByRole("heading", { name: "Over time" }).count(), 0, "there is nothing to draw");
    await visit.accessible("Cache, off");
    await visit.picture("cache-off");
    await visit.end();
  },

  /** All of it by keyboard. */
  async keyboard() {
    const visit = await Visit.begin({ colorScheme: "light" });
    const { page } = visit;
    await visit.go();
    await page.keyboard.press("Tab");
    await page.keyboard.press("Enter");
    await visit.until("the first key leads to the content", () => page.evaluate(() => document.activeElement?.id === "main"));
    await tabTo(page, "15 min");
    await page.keyboard.press("ArrowRight");
    await visit.until("arrows choose the time that is shown", () => page.getByLabel("1 h").isChecked());
    await page.getByRole("link", { name: "Settings" }).focus();
    await page.keyboard.press("Enter");
    await page.getByRole("heading", { name: "Settings" }).waitFor();
    const button = page.getByRole("button", { name: "Sign in" }).first();
    await button.focus();
    await page.keyboard.press("Enter");
    await visit.until("a dialog takes the focus", () => page.evaluate(() => document.activeElement?.getAttribute("name") === "user"));
    await page.keyboard.press("Escape");
    await page.getByRole("dialog").waitFor({ state: "detached" });
    await visit.until("and gives it back", () => button.evaluate((element) => element === document.activeElement));
    await page.getByRole("button", { name: /Theme/ }).focus();
    await page.keyboard.press("Enter");
    await page.keyboard.press("Enter");
    await visit.until("the theme is dark", () => page.evaluate(() => document.documentElement.dataset.theme === "dark"));
    await visit.follow("Overview");
    await page.getByText("Figures of Many clients, few connections").focus();
    await page.keyboard.press("Enter");
    await page.getByRole("region", { name: "Figures of Many clients, few connections" }).getByRole("row").nth(1).waitFor();
    await visit.end();
  },
};

/** The figure in a chart's legend. */
async function legend(page, label) {
  const entry = page.locator(".legend li", { has: page.getByText(label, { exact: true }) }).first();
  return Number.parseFloat((await entry.locator(".figure").innerText()).replaceAll(",", ""));
}

/** The texts of the picture of a cluster that reach beyond it. */
function cutOff(page) {
  return page.evaluate(() => {
    const right = (picture) => picture.viewBox.baseVal.width;
    const texts = [...document.querySelectorAll("svg.topology text")];
    return texts.filter((text) => text.getBBox().x + text.getBBox().width > right(text.ownerSVGElement)).map((text) => text.textContent);
  });
}

async function press(page, name) {
  await page.getByRole("main").getByRole("button", { name, exact: true }).first().click();
}

/** An entry of a node's menu. */
async function choose(page, node, entry) {
  await page.getByRole("button", { name: `More about node ${node}` }).click();
  await page.getByRole("button", { name: entry }).click();
}

async function confirm(page, name) {
  await page.getByRole("dialog").getByRole("button", { name, exact: true }).click();
  await page.getByRole("dialog").waitFor({ state: "detached" });
}

/** Presses Tab until the element with this label has the focus, or its group has. */
async function tabTo(page, label) {
  await page.getByLabel(label).check();
  for (let presses = 0; presses < 60; presses += 1) {
    if (await page.getByLabel(label).evaluate((element) => element === document.activeElement)) return;
    await page.keyboard.press("Tab");
  }
  throw new Error(`Tab never came to "${label}"`);
}

/** What a request that changes something is answered with, sent by the page's own session. */
function post(page, path, body) {
  return page.evaluate(
    async ([to, what]) => {
      const session = await (await fetch("./api/v1/session")).json();
      const headers = { "Content-Type": "application/json", "X-CSRF-Token": session.csrf ?? "none" };
      return (await fetch(`./api/v1/${to}`, { method: "POST", headers, body: JSON.stringify(what) })).status;
    },
    [path, body],
  );
}

const story = STORIES[process.argv[2]];
assert.ok(story, `no story is called ${process.argv[2]}; there are: ${Object.keys(STORIES).join(", ")}`);
await story().then(
  () => process.exit(0),
  (fault) => {
    console.error(fault.stack ?? fault);
    process.exit(1);
  },
);
