// Every setting: its value, what it could be, and what it means.

import { useState } from "preact/hooks";

import { get, type Setting } from "../api";
import { counted } from "../format";
import { useLive } from "../live";
import { useServices } from "../context";
import { ReloadButton } from "../parts/actions";
import { Filters, Find, matches, plainly } from "../parts/filter";
import { Markdown } from "../parts/markdown";
import { Badge, Placeholder } from "../parts/small";
import type { Route } from "../route";

export function SettingsPage({ route }: { route: Route }) {
  const { session } = useServices();
  const [words, setWords] = useState("");
  const [changed, setChanged] = useState(false);
  const live = useLive(`settings ${session.role}`, 10_000, () => get<{ settings: Setting[] }>("settings"));
  const group = route.query.get("group");
  const fits = (setting: Setting) => (group === null || setting.group === group) && (!changed || setting.changed);
  const found = live.value?.settings.filter((setting) => fits(setting) && matches(`${setting.name} ${setting.group} ${setting.documentation}`, words)) ?? [];
  const groups = [...new Set(live.value?.settings.map((setting) => setting.group))];
  return (
    <section aria-labelledby="settings">
      <div class="section-head">
        <h2 id="settings">Settings</h2>
        <ReloadButton />
      </div>
      <Filters route={route} choices={[{ word: "group", title: "Group", options: plainly(groups) }]}>
        <Find value={words} set={setWords} />
        <label class="check">
          <input type="checkbox" checked={changed} onChange={(event) => setChanged(event.currentTarget.checked)} /> changed only
        </label>
        <span class="hint" role="status">{live.value ? counted(found.length, "setting") : ""}</span>
      </Filters>
      {!session.sees_names && <p class="notice">Values are shown to those who sign in.</p>}
      {live.value ? <Groups settings={found} /> : <Placeholder fault={live.fault}>Loading …</Placeholder>}
    </section>
  );
}

function Groups({ settings }: { settings: Setting[] }) {
  if (settings.length === 0) return <p class="none">No setting matches.</p>;
  const groups = new Map<string, Setting[]>();
  for (const setting of settings) groups.set(setting.group, [...(groups.get(setting.group) ?? []), setting]);
  return (
    <>
      {[...groups].map(([group, members]) => (
        <section key={group} class="group" aria-label={group}>
          <h3>{group}</h3>
          <dl class="settings">
            {members.map((setting) => (
              <Entry key={setting.name} setting={setting} />
            ))}
          </dl>
        </section>
      ))}
    </>
  );
}

function Entry({ setting }: { setting: Setting }) {
  return (
    <div class={setting.changed ? "changed" : ""}>
      <dt>
        <code>{setting.name}</code>
        {setting.changed && <Badge tone="active">changed</Badge>}
        {!setting.in_effect && <Badge tone="attention">no effect yet</Badge>}
      </dt>
      <dd class="value">
        {setting.value === null ? <span class="quiet">–</span> : <code>{setting.value === "" ? "(empty)" : setting.value}</code>}
        {setting.changed && setting.default !== null && <span class="quiet"> default {setting.default === "" ? "(empty)" : setting.default}</span>}
      </dd>
      <dd>
        <Markdown text={setting.documentation} />
        <p class="hint">
          {setting.takes}; changes at a {setting.change}
          {setting.origin === "pgweir" && "; pgweir's own"}
        </p>
      </dd>
    </div>
  );
}
