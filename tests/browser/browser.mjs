// Chromium with a page that watches itself: whatever it complains about on its console fails the story.

import { mkdirSync, readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { join } from "node:path";

import { chromium } from "playwright-core";

const AXE = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
const FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking --disable-component-update --disable-sync";
/** How long one step may take. Nothing here is about speed; this only tells "never" from "at last". */
const TIMEOUT_MS = 40_000;

/** What a browser says when it can not reach a server, or is refused: asked for by the stories that do that. */
const EXPECTED = /Failed to load resource: (net::ERR_|the server responded with a status of 40[13])/;

export class Visit {
  /** Opens Chromium; `options` are those of a Playwright context, e.g. viewport and colorScheme. */
  static async begin(options = {}) {
    const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? "/usr/bin/chromium", args: FLAGS.split(" ") });
    const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, reducedMotion: "reduce", ...options });
    const page = await context.newPage();
    page.setDefaultTimeout(TIMEOUT_MS);
    return new Visit(browser, page);
  }

  constructor(browser, page) {
    this.browser = browser;
    this.page = page;
    this.complaints = [];
    page.on("pageerror", (fault) => this.complaints.push(`uncaught: ${fault.stack ?? fault.message}`));
    page.on("console", (message) => {
      if (["error", "warning"].includes(message.type()) && !EXPECTED.test(message.text())) this.complaints.push(`${message.type()}: ${message.text()}`);
    });
    page.on("request", (request) => {
      if (!request.url().startsWith(process.env.URL)) this.complaints.push(`a request to somewhere else: ${request.url()}`);
    });
  }

  /** Goes to a page of the dashboard, e.g. "clients". */
  async go(page = "overview") {
    await this.page.goto(`${process.env.URL}/#/${page}`);
    await this.page.locator("main h2, main .none").first().waitFor();
  }

  /** Goes there by its link. */
  async follow(name) {
    await this.page.getByRole("navigation").getByRole("link", { name, exact: true }).click();
    await this.page.getByRole("main").getByRole("heading", { level: 2 }).first().waitFor();
  }

  async signIn(user, password = `pw-of-${user}`) {
    await this.page.getByRole("button", { name: "Sign in" }).first().click();
    const dialog = this.page.getByRole("dialog");
    await dialog.getByLabel("User").fill(user);
    await dialog.getByLabel("Password").fill(password);
    await dialog.getByRole("button", { name: "Sign in" }).click();
  }

  /** Waits until `look` gives something true, and returns that. */
  async until(what, look) {
    const end = Date.now() + TIMEOUT_MS;
    for (;;) {
      const seen = await look();
      if (seen) return seen;
      if (Date.now() > end) throw new Error(`still not: ${what}`);
      await this.page.waitForTimeout(100);
    }
  }

  /** A figure of the first screen, by what stands under it. */
  async vital(term) {
    const text = await this.page.locator(".vitals > div", { hasText: term }).locator("dd").innerText();
    return text === "–" ? 0 : Number.parseFloat(text.replaceAll(",", "").replace("<", ""));
  }

  /** Keeps a picture as output of the tests: of the whole page, unless that is long (`fullPage: false`). */
  async picture(name, { fullPage = true } = {}) {
    const folder = process.env.PICTURES;
    mkdirSync(folder, { recursive: true });
    await this.page.screenshot({ path: join(folder, `${name}.png`), fullPage });
  }

  /** No serious finding of axe, in what is on the screen now. */
  async accessible(what) {
    await this.page.evaluate(AXE);
    const found = await this.page.evaluate(() => globalThis.axe.run(document, { resultTypes: ["violations"] }));
    const serious = found.violations.filter((one) => ["serious", "critical"].includes(one.impact));
    if (serious.length > 0) {
      const lines = serious.map((one) => `  ${one.id}: ${one.help}\n${one.nodes.slice(0, 3).map((node) => `    ${node.html}\n    ${node.failureSummary}`).join("\n")}`);
      throw new Error(`not accessible, ${what}:\n${lines.join("\n")}`);
    }
  }

  /** Nothing sticks out sideways. */
  async fits(what) {
    const [wide, there] = await this.page.evaluate(() => [document.documentElement.scrollWidth, document.documentElement.clientWidth]);
    if (wide > there) throw new Error(`${what} is ${wide} px wide on a screen of ${there} px`);
  }

  async end() {
    await this.browser.close();
    if (this.complaints.length > 0) throw new Error(`the page complained:\n  ${this.complaints.join("\n  ")}`);
  }
}
