// What a list is narrowed to, and sorted by. The choice is kept in the address.

import { requery, type Route } from "../route";

interface Props {
  route: Route;
  choices: Record<string, string>;
  /** The word of the address' query that the choice is kept in. */
  word?: string;
  title?: string;
  /** How "all of them" is called; null when one must be chosen. */
  any?: string | null;
}

export function Filter({ route, choices, word = "state", title = "State", any = "any" }: Props) {
  const narrowed = ["database", "user"].filter((name) => route.query.get(name));
  return (
    <div class="filter">
      <label>
        {title}{" "}
        <select value={route.query.get(word) ?? (any === null ? Object.keys(choices)[0] : "")} onChange={(event) => requery(route, { [word]: event.currentTarget.value })}>
          {any !== null && <option value="">{any}</option>}
          {Object.entries(choices).map(([value, name]) => (
            <option key={value} value={value}>{name}</option>
          ))}
        </select>
      </label>
      {narrowed.map((name) => (
        <button type="button" key={name} onClick={() => requery(route, { [name]: "" })}>
          {name} {route.query.get(name)} <span aria-hidden="true">×</span>
          <span class="unseen">: show all</span>
        </button>
      ))}
    </div>
  );
}
