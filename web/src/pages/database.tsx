// One database, or one of its pools.

import { get, type Pool } from "../api";
import { href } from "../route";
import { useLive, useSeries } from "../live";
import { Actions } from "../parts/actions";
import { Charts, CrowdChart, WindowPicker } from "../parts/charts";
import { Pools } from "../parts/pools";
import { Badge, Placeholder } from "../parts/small";

interface Props {
  database: string;
  user: string | undefined;
  windowS: number;
  pick: (seconds: number) => void;
}

export function DatabasePage({ database, user, windowS, pick }: Props) {
  const series = useSeries(windowS, database, user);
  const all = useLive("pools", 1_000, () => get<{ time_s: number; pools: Pool[] }>("pools"));
  const pools = all.value?.pools.filter((pool) => pool.database === database && (user === undefined || pool.user === user)) ?? [];
  const paused = pools.some((pool) => pool.paused);
  const disabled = pools.some((pool) => pool.disabled);
  const broken = pools.find((pool) => pool.last_connect_error);
  const end = series.value?.time_s.at(-1) ?? all.value?.time_s ?? 0;
  return (
    <>
      <section aria-labelledby="name">
        <p class="crumbs">
          <a href={href("overview")}>Overview</a>
          {user !== undefined && <> / <a href={href("database", [database])}>{database}</a></>}
        </p>
        <div class="section-head">
          <h2 id="name">
            {user === undefined ? database : `${user} on ${database}`} {paused && <Badge tone="attention">paused</Badge>} {disabled && <Badge tone="attention">disabled</Badge>}
          </h2>
          {user === undefined && <Actions database={database} paused={paused} disabled={disabled} again={all.again} />}
        </div>
        {broken && (
          <p class="notice bad">
            The last connection to the server failed: {broken.last_connect_error}
          </p>
        )}
        {all.value ? <Pools pools={pools} inDatabase /> : <Placeholder fault={all.fault}>Asking …</Placeholder>}
        <p class="links">
          <a href={href("clients", [], { database, user })}>Its clients</a> · <a href={href("servers", [], { database, user })}>its server connections</a> ·{" "}
          <a href={href("statements", [], { database })}>its statements</a>
        </p>
      </section>
      <section aria-labelledby="time">
        <div class="section-head">
          <h2 id="time">Over time</h2>
          <WindowPicker windowS={windowS} pick={pick} />
        </div>
        {series.value && series.value.time_s.length > 0 ? (
          <>
            <CrowdChart series={series.value} windowS={windowS} end={end} />
            <Charts series={series.value} windowS={windowS} end={end} />
          </>
        ) : (
          <Placeholder fault={series.fault}>Nothing has been measured yet.</Placeholder>
        )}
      </section>
    </>
  );
}
