// @ts-check
// Addresses of views, as dashboards/address.py reads them: where a choice, a click and a zoom lead.
// Functions here change nothing; null says that the view stays as it is.

/** @param {URL} url */
const text = (url) => url.pathname + url.search.replaceAll("%2C", ",");

/**
 * Set or remove a parameter: null and undefined remove it.
 * @param {URL} url
 * @param {string} name
 * @param {string | number | bigint | null | undefined} value
 */
function put(url, name, value) {
  if (value === null || value === undefined) url.searchParams.delete(name);
  else url.searchParams.set(name, String(value));
}

// What the reader chose for all pages: the parameters of the address itself, or those in its
// parameter `scope` where the page shows something else, such as the evidence of a finding.
const CHOSEN = ["rank", "report", "start", "end"];

/** @param {URL} url */
function chosen(url) {
  const scope = url.searchParams.get("scope");
  if (scope !== null) return new URLSearchParams(scope);
  const all = new URLSearchParams();
  for (const name of CHOSEN) {
    const value = url.searchParams.get(name);
    if (value !== null) all.set(name, value);
  }
  return all;
}

/**
 * What is chosen for all pages, as text to compare.
 * @param {string} here
 */
export const scopeOf = (here) => chosen(new URL(here)).toString();

/**
 * Set or remove what is chosen, also where the page shows something else.
 * @param {URL} url
 * @param {string} name
 * @param {string | bigint | null} value
 */
function choose(url, name, value) {
  if (url.searchParams.has("scope")) {
    const scope = chosen(url);
    if (value === null) scope.delete(name);
    else scope.set(name, String(value));
    url.searchParams.set("scope", scope.toString().replaceAll("%2C", ","));
  }
  put(url, name, value);
}

/**
 * The address of the same page for other reports and ranks; none chosen is all.
 * @param {string} here
 * @param {number[] | null | undefined} reports
 * @param {number[] | null | undefined} ranks
 */
export function withChoice(here, reports, ranks) {
  const url = new URL(here);
  const before = chosen(url);
  const changed = Object.entries({ report: reports, rank: ranks })
    .map(([name, numbers]) => ({ name, numbers: (numbers ?? []).join(",") }))
    .filter(({ name, numbers }) => numbers !== (before.get(name) ?? ""));
  if (!changed.length) return null;
  for (const { name, numbers } of changed) choose(url, name, numbers || null);
  // Evidence is of one rank.
  put(url, "finding", null);
  put(url, "evidence", null);
  return text(url);
}

/**
 * The address of the same page for a time range, in ns; null for all of the time.
 * @param {string} here
 * @param {string | null} start
 * @param {string | null} end
 */
export function withTime(here, start, end) {
  const url = new URL(here);
  choose(url, "start", start);
  choose(url, "end", end);
  return text(url);
}

/**
 * The time that a view shows, in ns; null where it shows all.
 * @param {string} here
 */
export function shownTime(here) {
  const { searchParams } = new URL(here);
  const [start, end] = [searchParams.get("start"), searchParams.get("end")];
  return start === null || end === null ? null : { start, end };
}

/**
 * The address of the page that asks what if, with what is ticked and what is written.
 * @param {string} here
 * @param {string[] | null | undefined} ticked
 * @param {string | null | undefined} written
 */
export function withAssumptions(here, ticked, written) {
  const url = new URL(here);
  const all = [...(ticked ?? []), ...(written ?? "").split(";").map((part) => part.trim())];
  put(url, "assume", all.filter(Boolean).join(";") || null);
  return text(url);
}

/**
 * The address of the timeline as it stands. Moving it does not change what is chosen.
 * @param {string} here
 * @param {Record<string, string | number | bigint | null>} shown values by parameter, null for none
 */
export function withTimeline(here, shown) {
  const url = new URL(here);
  if (url.pathname !== "/timeline") return text(url); // the reader went on before it was noted
  url.searchParams.set("scope", chosen(url).toString().replaceAll("%2C", ","));
  for (const [name, value] of Object.entries(shown)) put(url, name, value);
  return text(url);
}

/**
 * The address with a piece of time in it.
 * @param {string} href
 * @param {string} base the nanosecond from which the times count
 * @param {number} start ns
 * @param {number} end ns
 */
export function withTimes(href, base, start, end) {
  const url = new URL(href, "http://here");
  put(url, "start", BigInt(base) + BigInt(Math.round(start)));
  put(url, "end", BigInt(base) + BigInt(Math.round(end)));
  return text(url);
}

/**
 * The address of the comparison with the steps that are shown: `rank.step` by side.
 * @param {string} here
 * @param {Record<string, string>} steps
 */
export function withSteps(here, steps) {
  const url = new URL(here);
  if (url.pathname !== "/compare") return text(url); // the reader went on
  for (const [side, step] of Object.entries(steps)) put(url, side, step);
  return text(url);
}
