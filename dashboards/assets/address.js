// @ts-check
// Addresses of views, for choices, clicks and zooms: parameters are set and removed. What an address
// can say is defined in dashboards/address.py, and a page is drawn for a readable address only.
// Functions return new addresses; null means that the view stays as it is.

/** @typedef {"rank" | "report" | "start" | "end" | "finding" | "evidence" | "select" | "search" | "list" | "assume" | "sql" |
 *   "pinned" | "hidden" | "moved" | "path" | "before" | "after" | "scope"} Key */
/** @typedef {Partial<Record<Key, string | number | bigint | null | undefined>>} Values */

const [OVERVIEW, TIMELINE, COMPARE] = ["/", "/timeline", "/compare"];
// The reader's choices for all pages: the parameters of the address itself, or those in its
// parameter `scope` where the page shows something else, such as the evidence of a finding.
const CHOSEN = /** @type {Key[]} */ (["rank", "report", "start", "end"]);

/** @param {URL} url */
const text = (url) => url.pathname + url.search.replaceAll("%2C", ",");

/**
 * A parameter of an address; null where it is missing.
 * @param {string} here
 * @param {Key} key
 */
export const parameter = (here, key) => new URL(here).searchParams.get(key);

/**
 * Set or remove a parameter: null and undefined remove it.
 * @param {URL} url
 * @param {Key} key
 * @param {string | number | bigint | null | undefined} value
 */
function put(url, key, value) {
  if (value === null || value === undefined) url.searchParams.delete(key);
  else url.searchParams.set(key, String(value));
}

/**
 * @param {URL} url
 * @param {Values} values
 */
function putAll(url, values) {
  for (const [key, value] of Object.entries(values)) put(url, /** @type {Key} */ (key), value);
  return text(url);
}

/** @param {URL} url */
function chosen(url) {
  const scope = parameter(url.href, "scope");
  if (scope !== null) return new URLSearchParams(scope);
  const all = new URLSearchParams();
  for (const key of CHOSEN) {
    const value = url.searchParams.get(key);
    if (value !== null) all.set(key, value);
  }
  return all;
}

/**
 * The choices for all pages, as text to compare.
 * @param {string} here
 */
export const scopeOf = (here) => chosen(new URL(here)).toString();

/**
 * The address of the overview for what is chosen.
 * @param {string} here
 */
export function toOverview(here) {
  const scope = scopeOf(here).replaceAll("%2C", ",");
  return scope ? `${OVERVIEW}?${scope}` : OVERVIEW;
}

/**
 * Set or remove what is chosen, also where the page shows something else.
 * @param {URL} url
 * @param {Key} key
 * @param {string | null} value
 */
function choose(url, key, value) {
  if (parameter(url.href, "scope") !== null) {
    const scope = chosen(url);
    if (value === null) scope.delete(key);
    else scope.set(key, value);
    putScope(url, scope);
  }
  put(url, key, value);
}

/**
 * @param {URL} url
 * @param {URLSearchParams} scope
 */
const putScope = (url, scope) => put(url, "scope", scope.toString().replaceAll("%2C", ","));

/**
 * The numbers of the reports or the ranks that are chosen; none chosen is all.
 * @param {string} here
 * @param {"report" | "rank"} what
 */
export const chosenNumbers = (here, what) =>
  (chosen(new URL(here)).get(what) ?? "").split(",").filter(Boolean).map(Number);

/**
 * The address of the same page for other reports and ranks; none chosen is all.
 * @param {string} here
 * @param {number[] | null | undefined} reports
 * @param {number[] | null | undefined} ranks
 */
export function withChoice(here, reports, ranks) {
  const url = new URL(here);
  const before = chosen(url);
  /** @type {[Key, string][]} */
  const choices = [["report", (reports ?? []).join(",")], ["rank", (ranks ?? []).join(",")]];
  const changed = choices.filter(([key, numbers]) => numbers !== (before.get(key) ?? ""));
  if (!changed.length) return null;
  for (const [key, numbers] of changed) choose(url, key, numbers || null);
  return putAll(url, { finding: null, evidence: null }); // evidence is of one rank
}

/**
 * The address of the same page for these ranks, of the same reports.
 * @param {string} here
 * @param {number[]} ranks
 */
export const withRanks = (here, ranks) => withChoice(here, chosenNumbers(here, "report"), ranks);

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
  const [start, end] = [parameter(here, "start"), parameter(here, "end")];
  return start === null || end === null ? null : { start, end };
}

/**
 * The address of the what-if page, with the assumptions that are ticked and typed.
 * @param {string} here
 * @param {string[] | null | undefined} ticked
 * @param {string | null | undefined} written
 */
export function withAssumptions(here, ticked, written) {
  const all = [...(ticked ?? []), ...(written ?? "").split(";").map((part) => part.trim())];
  return putAll(new URL(here), { assume: all.filter(Boolean).join(";") || null });
}

/**
 * @param {string} here
 * @param {string} sql
 */
export const withQuery = (here, sql) => putAll(new URL(here), { sql: sql.trim() || null });

/**
 * The address of the timeline in its present view. Moving the view changes no choice.
 * @param {string} here
 * @param {Values} shown
 */
export function withTimeline(here, shown) {
  const url = new URL(here);
  if (url.pathname !== TIMELINE) return text(url); // another page was opened before
  putScope(url, chosen(url));
  return putAll(url, shown);
}

/**
 * @param {string} href
 * @param {string} base the nanosecond from which the times count
 * @param {number} start ns
 * @param {number} end ns
 */
export function withTimes(href, base, start, end) {
  const [first, last] = [start, end].map((time) => BigInt(base) + BigInt(Math.round(time)));
  return putAll(new URL(href, "http://here"), { start: first, end: last });
}

/**
 * The address of a time of one rank on the timeline, with no choice of ranks or reports.
 * @param {number} rank
 * @param {string} start ns
 * @param {bigint} end
 */
export const timelineAt = (rank, start, end) =>
  putAll(new URL(TIMELINE, "http://here"), { rank, start, end, scope: "" });

/**
 * The address of the comparison with the steps that are shown: `rank.step` by side.
 * @param {string} here
 * @param {Values} steps
 */
export function withSteps(here, steps) {
  const url = new URL(here);
  return url.pathname === COMPARE ? putAll(url, steps) : text(url); // another page was opened
}
