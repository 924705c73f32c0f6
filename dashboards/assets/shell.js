// @ts-check
/// <reference path="./globals.d.ts" />
// The bar at the top: the address defines what is shown, so the bar only changes the address.
// Dash finds these functions as `shell` in `dash_clientside`; see dashboards/shell.py.
import { chosenNumbers, shownTime, withAssumptions, withChoice, withQuery, withTime } from "./address.js";
import { go } from "./navigation.js";
import { toggleNotes } from "./notes.js";

const SAID_MS = 2500;

/** @param {"png" | "svg"} kind */
const savePicture = async (kind) => (await import("./pictures.js")).savePicture(kind);

const unchanged = () => window.dash_clientside.no_update;

/** @param {HTMLElement} waiting */
async function untilOver(waiting) {
  const rows = /** @type {HTMLElement} */ (document.getElementById("rows"));
  const bar = /** @type {HTMLProgressElement} */ (document.getElementById("progress"));
  const text = /** @type {HTMLElement} */ (waiting.querySelector("p"));
  for (;;) {
    try {
      const state = await (await fetch("/progress")).json();
      if (state.is_over) break;
      const { done, expected } = state;
      bar.value = expected ? done / expected : 0;
      const written = [done, expected].map((count) => count.toLocaleString("en"));
      rows.textContent = expected ? `${written[0]} of ${written[1]} rows` : "";
      if (expected && done >= expected) {
        text.textContent = "Looking for findings …";
      }
    } catch {
      text.textContent =
        "traceprof has stopped: the terminal that it ran in says why.";
      return;
    }
  }
  window.dash_clientside.set_props("ready", { data: true });
}

/**
 * The reports and ranks that the address chooses, unless one of them is not offered.
 * @param {string} _search of the address
 * @param {{ value: number }[]} reports that are offered
 * @param {{ value: number }[]} ranks
 */
export function chosen(_search, reports, ranks) {
  const values = [chosenNumbers(location.href, "report"), chosenNumbers(location.href, "rank")];
  const areOffered = [reports, ranks].every((options, place) =>
    values[place]?.every((number) => options.some(({ value }) => value === number)));
  return areOffered ? values : [unchanged(), unchanged()];
}

/**
 * Keep the page and its view; change only reports and ranks.
 * @param {number[] | null} reports
 * @param {number[] | null} ranks
 */
export function choose(reports, ranks) {
  go(withChoice(location.href, reports, ranks));
  return unchanged();
}

/**
 * Ask what a step would take under the assumptions that are ticked and typed.
 * @param {number} clicks
 * @param {number} submits
 * @param {any} ticked
 * @param {any} written
 */
export function ask(clicks, submits, ticked, written) {
  if (clicks || submits) go(withAssumptions(location.href, ticked, written), { stay: true });
  return unchanged();
}

/**
 * @param {number} clicks
 * @param {string | null} sql
 */
export function query(clicks, sql) {
  if (clicks) go(withQuery(location.href, sql ?? ""), { stay: true });
  return unchanged();
}

/** @param {{ start: string, end: string } | null} shown that all pages show from now on */
const keep = (shown) => shown && go(withTime(location.href, shown.start, shown.end), { stay: true });

/** @type {Record<string, () => unknown>} what buttons do, by their ids */
const BUTTONS = {
  "clear-time": () => go(withTime(location.href, null, null), { stay: true }),
  "keep-time": () => keep(shownTime(location.href)),
  "copy-link": copy,
  "notes-open": toggleNotes,
  "save-png": () => savePicture("png"),
  "save-svg": () => savePicture("svg"),
  "theme": () => window.dispatchEvent(new Event("traceprof:switch-theme")),
};

/** Let the buttons of the bar act, and Ctrl+Enter run the query that is written. */
export function listen() {
  document.addEventListener("click", ({ target }) => {
    const button = target instanceof Element && target.closest("button");
    if (button) BUTTONS[button.id]?.();
  });
  document.addEventListener("keydown", ({ ctrlKey, key, metaKey, target }) => {
    const isThere = target instanceof Element && target.id === "query-text";
    if (isThere && key === "Enter" && (ctrlKey || metaKey)) document.getElementById("query-run")?.click();
  });
}

// Copy the address of the view with its token, for another person or browser.
async function copy() {
  const button = /** @type {HTMLElement} */ (document.getElementById("copy-link"));
  const url = new URL(location.href);
  try {
    const { token } = await (await fetch("/link")).json();
    if (token) url.searchParams.set("token", token);
    await navigator.clipboard.writeText(url.href);
    button.textContent = "Copied";
  } catch {
    // Browsers allow writing to the clipboard only on localhost and https.
    window.prompt("The address of this view:", url.href);
    return;
  }
  setTimeout(() => { button.textContent = "Copy link"; }, SAID_MS);
}

/**
 * While reports are read: show the progress, and then the page.
 * @param {boolean} ready
 */
export function watch(ready) {
  const waiting = /** @type {HTMLElement} */ (document.getElementById("waiting"));
  if (ready) waiting.hidden = true;
  else untilOver(waiting);
  return unchanged();
}

/** @param {number} clicks */
export function save(clicks) {
  return clicks ? true : unchanged();
}

/** Mark the link of the page that is shown, by an attribute that Dash's links do not take. */
export function markCurrent() {
  for (const link of document.querySelectorAll("#menu a")) {
    if (link.classList.contains("active")) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  return unchanged();
}
