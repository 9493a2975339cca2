// The frame: head, pages, and whether the pooler answers.

import { useEffect, useState } from "preact/hooks";

import { get, signOut, type Overview, type Session } from "./api";
import { ServicesContext, type Services } from "./context";
import { clock, span } from "./format";
import { hold, useHold } from "./hold";
import { useLive, type Live } from "./live";
import { ApplicationsPage } from "./pages/applications";
import { CachePage } from "./pages/cache";
import { ClientsPage } from "./pages/clients";
import { ClustersPage } from "./pages/clusters";
import { DatabasePage } from "./pages/database";
import { DetailsPage } from "./pages/details";
import { LogPage } from "./pages/log";
import { OverviewPage } from "./pages/overview";
import { ServersPage } from "./pages/servers";
import { SettingsPage } from "./pages/settings";
import { StatementsPage } from "./pages/statements";
import { Confirm, SignIn, type Question } from "./parts/dialog";
import { Placeholder } from "./parts/small";
import { placeOf } from "./place";
import { href, useRoute, type Route } from "./route";
import { choose, chosenTheme, type Theme } from "./theme";

const PAGES: [string, string][] = [
  ["overview", "Overview"],
  ["clients", "Clients"],
  ["applications", "Applications"],
  ["servers", "Servers"],
  ["clusters", "Clusters"],
  ["statements", "Statements"],
  ["cache", "Cache"],
  ["details", "Details"],
  ["settings", "Settings"],
  ["log", "Log"],
];

const STRANGER: Session = { role: "anonymous", user: null, csrf: null, sees_names: false, may_act: false, anonymous: "none", sign_in: false };
const NOTICE_MS = 6_000;

export function App() {
  const route = useRoute();
  const session = useLive("session", 60_000, () => get<Session>("session"));
  const who = session.value ?? STRANGER;
  const live = useLive("overview", 1_000, () => get<Overview>("overview"));
  const [question, setQuestion] = useState<Question | null>(null);
  const [signing, setSigning] = useState(false);
  const [notice, setNotice] = useState("");
  const [windowS, setWindowS] = useState(300);

  useEffect(() => {
    if (notice === "") return;
    const timer = window.setTimeout(() => setNotice(""), NOTICE_MS);
    return () => window.clearTimeout(timer);
  }, [notice]);
  useEffect(() => live.again(), [who.role]);
  // A session that has ended shows in an answer first.
  const refused = live.fault?.status === 401;
  useEffect(() => {
    if (refused) session.again();
  }, [refused]);
  const place = live.value ? placeOf(live.value.process) : "";
  useEffect(() => {
    // Several dashboards are open side by side: their tabs must differ.
    document.title = [titleOf(route), place, "pgweir"].filter((word) => word !== "").join(" · ");
  }, [route, place]);
  useEffect(() => {
    // On narrow screens the pages' names scroll sideways.
    document.querySelector("nav [aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
  }, [route]);

  const services: Services = { session: who, ask: setQuestion, signIn: () => setSigning(true), tell: setNotice };
  return (
    <ServicesContext.Provider value={services}>
      <a class="skip" href="#main" onClick={(event) => { event.preventDefault(); document.getElementById("main")?.focus(); }}>Skip to the content</a>
      <Head route={route} live={live} session={who} signIn={services.signIn} signedOut={session.again} />
      <Reach live={live} />
      <main id="main" tabIndex={-1}>
        {refused ? <Locked signIn={services.signIn} possible={who.sign_in} /> : <Page route={route} live={live} windowS={windowS} pick={setWindowS} />}
      </main>
      <footer>
        <p>
          <a href="./metrics">Metrics for Prometheus</a> · <a href="./licences.txt">Licences of what this page is made of</a> · times are those of this browser
        </p>
      </footer>
      <p class={notice === "" ? "toast empty" : "toast"} role="status">{notice}</p>
      {question && <Confirm question={question} close={() => setQuestion(null)} tell={setNotice} />}
      {signing && <SignIn close={() => setSigning(false)} done={() => session.again()} />}
    </ServicesContext.Provider>
  );
}

function titleOf(route: Route): string {
  if (route.page === "database") return route.parts.toReversed().join(" on ");
  return PAGES.find(([page]) => page === route.page)?.[1] ?? "Not found";
}

function Page({ route, live, windowS, pick }: { route: Route; live: Live<Overview>; windowS: number; pick: (seconds: number) => void }) {
  switch (route.page) {
    case "overview":
      return <OverviewPage live={live} windowS={windowS} pick={pick} />;
    case "database":
      return <DatabasePage live={live} database={route.parts[0] ?? ""} user={route.parts[1]} windowS={windowS} pick={pick} />;
    case "clients":
      return <ClientsPage live={live} route={route} />;
    case "applications":
      return <ApplicationsPage />;
    case "servers":
      return <ServersPage route={route} />;
    case "clusters":
      return <ClustersPage live={live} windowS={windowS} pick={pick} />;
    case "statements":
      return <StatementsPage route={route} />;
    case "cache":
      return <CachePage windowS={windowS} pick={pick} />;
    case "details":
      return <DetailsPage live={live} windowS={windowS} pick={pick} />;
    case "settings":
      return <SettingsPage route={route} />;
    case "log":
      return <LogPage route={route} />;
    default:
      return <Placeholder>There is no such page.</Placeholder>;
  }
}

function Head({ route, live, session, signIn, signedOut }: { route: Route; live: Live<Overview>; session: Session; signIn: () => void; signedOut: () => void }) {
  const leave = async () => {
    await signOut(session.csrf).catch(() => null); // the next answer says who is signed in, also after a fault
    signedOut();
  };
  return (
    <header>
      <div class="head">
        <h1>
          <a href={href("overview")}>pgweir</a>
        </h1>
        {live.value && <span class="place">{[placeOf(live.value.process), live.value.process.version].filter((word) => word !== "").join(" · ")}</span>}
        <Pulse live={live} />
        <div class="head-end">
          <ThemeButton />
          {session.user !== null ? (
            <>
              <span class="who">{session.user}{session.role === "admin" && <span class="quiet"> (admin)</span>}</span>
              <button type="button" class="plain" onClick={leave}>Sign out</button>
            </>
          ) : (
            session.sign_in && <button type="button" class="plain" onClick={signIn}>Sign in</button>
          )}
        </div>
      </div>
      <nav aria-label="Pages">
        <ul>
          {PAGES.filter(([page]) => page !== "clusters" || hasClusters(live)).map(([page, title]) => (
            <li key={page}>
              <a href={href(page)} aria-current={route.page === page || (page === "overview" && route.page === "database") ? "page" : undefined}>{title}</a>
            </li>
          ))}
        </ul>
      </nav>
    </header>
  );
}

function hasClusters(live: Live<Overview>): boolean {
  return (live.value?.clusters ?? []).length > 0;
}

function Pulse({ live }: { live: Live<Overview> }) {
  const held = useHold();
  const now = live.value;
  if (!now) return <span class="pulse" />;
  const state = live.fault ? "lost" : held ? "held" : "";
  return (
    <span class={`pulse ${state}`}>
      <i aria-hidden="true" />
      {live.fault ? "not reachable" : held ? `held at ${clock(now.time_s)}` : "live"}
      {state === "" && <span class="uptime">, up {span(now.time_s - now.process.started_s)}</span>}
      {!live.fault && (
        <button type="button" class="plain small" onClick={() => hold(!held)} title={held ? "Let the figures move again" : "Keep the figures still, to read them"}>
          {held ? "Go on" : "Hold"}
        </button>
      )}
    </span>
  );
}

/** A bar over the page when the pooler cannot be reached: what is shown then is old. */
function Reach({ live }: { live: Live<Overview> }) {
  if (!live.fault || live.fault.status === 401) return <div role="status" />;
  const since = live.at > 0 ? ` What you see is from ${new Date(live.at).toLocaleTimeString("en-GB")}.` : "";
  return (
    <div role="status" class="reach">
      {live.fault.status === 0 ? "pgweir does not answer; trying again." : `pgweir answers with a fault: ${live.fault.message}.`}
      {since} <button type="button" onClick={live.again}>Try now</button>
    </div>
  );
}

function Locked({ signIn, possible }: { signIn: () => void; possible: boolean }) {
  return (
    <div class="none">
      <p>Figures are shown to those who sign in.</p>
      {possible ? <p><button type="button" class="main" onClick={signIn}>Sign in</button></p> : <p>No user can sign in yet: admin_users or stats_users must name a user with a password in auth_file.</p>}
    </div>
  );
}

const THEMES: Record<Theme, [Theme, string]> = { system: ["light", "Theme: as the system"], light: ["dark", "Theme: light"], dark: ["system", "Theme: dark"] };

function ThemeButton() {
  const [theme, setTheme] = useState(chosenTheme);
  const [next, name] = THEMES[theme];
  const turn = () => {
    choose(next);
    setTheme(next);
  };
  return (
    <button type="button" class="plain theme" onClick={turn} aria-label={name} title={name}>
      <svg viewBox="0 0 20 20" width="18" height="18" aria-hidden="true">
        <circle cx="10" cy="10" r="7.25" fill="none" stroke="currentColor" stroke-width="1.5" />
        {theme !== "light" && <path d={theme === "dark" ? "M10 2.75a7.25 7.25 0 0 1 0 14.5a7.25 7.25 0 0 1 0-14.5z" : "M10 2.75a7.25 7.25 0 0 1 0 14.5z"} fill="currentColor" />}
      </svg>
    </button>
  );
}
