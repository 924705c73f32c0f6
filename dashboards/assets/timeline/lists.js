// @ts-check
// The panel's lists: an area, its events, and a collective on all of its ranks.
import { button, make } from "./elements.js";
import { sharesText } from "./path.js";
import { counted, duration, grouped, seconds } from "./time.js";
import { memberText } from "./together.js";
/** @import { Actions, Area, Listed, Statistics, StepPath, Summary, Together } from "./types.d.ts" */

const MAX_PARTS = 30; // of a critical path, that are listed

const kind = (/** @type {number} */ column) => (column ? { class: "number" } : {});

/**
 * A table; the first column is text, the others are numbers unless they are elements.
 * @param {string} label
 * @param {string[]} heads
 * @param {(string | Node)[][]} rows
 */
function table(label, heads, rows) {
  return make("table", { "aria-label": label },
    make("thead", {}, make("tr", {},
      ...heads.map((head, column) => make("th", { scope: "col", ...kind(column) }, head)))),
    make("tbody", {}, ...rows.map((row) =>
      make("tr", {}, ...row.map((cell, column) => make("td", kind(column), cell))))));
}

/** @type {Record<string, string>} */
const SOURCES = { op: "GPU", call: "API", range: "NVTX", mark: "mark", operator: "operator", stall: "stall" };

/**
 * True if some of the events have a length: marks have none.
 * @param {Summary} summary
 */
export const takesTime = ({ names }) => names.some(({ total }) => total !== "0");

const time = (/** @type {string} */ ns) => duration(Number(ns));
const percent = (/** @type {number} */ share) => `${(100 * share).toFixed(1)} %`;

/**
 * @param {Area} area
 * @param {Statistics} statistics
 * @param {(key: string) => string} nameOf of a row
 * @param {Actions} actions
 */
export function areaContent(area, { count, names, rows, num_names: numNames }, nameOf, actions) {
  const length = area.end - area.start;
  const rest = numNames - names.length;
  return [
    make("header", {},
      make("h2", {}, `${counted(count, "event")} in ${duration(length)}`),
      make("span", { class: "note" }, `on ${counted(rows.length, "row")}`),
      button("zoom", "zoom to this area", () => actions.frame(area)),
      button("events", "list these events (E)", actions.events)),
    make("div", { class: "timeline-tables" },
      table("what ran, by name", ["name", "of", "events", "time together", "share", "longest"],
        names.map((entry) => [entry.name, SOURCES[entry.source] ?? entry.source, grouped(entry.count),
          ...(entry.source === "mark" ? ["–", "–", "–"] :
            [time(entry.total), percent(entry.share), time(entry.longest)])])),
      table("rows", ["row", "events", "busy", "idle", "busy share"],
        rows.map((row) => [nameOf(row.row), grouped(row.count), time(row.busy), time(row.idle),
          percent(Number(row.busy) / Math.max(length, 1))]))),
    ...(rest > 0 ? [make("p", { class: "note" }, `and ${grouped(rest)} more names`)] : []),
  ];
}

/**
 * @param {Area} area
 * @param {Listed} listed
 * @param {(key: string) => string} nameOf of a row
 * @param {Actions} actions
 */
export function eventsContent(area, { count, events }, nameOf, actions) {
  const shown = events.length < count ? `the first ${grouped(events.length)} of them` : "all of them";
  return [
    make("header", {},
      make("h2", {}, `${counted(count, "event")} in ${duration(area.end - area.start)}`),
      make("span", { class: "note" }, shown),
      button("statistics", "what ran, by name (T)", actions.area)),
    table("events", ["event", "row", "start", "duration"], events.map((event) => [
      button(event.label, `select ${event.label}`, () => actions.select(event.id)),
      nameOf(event.row), `${grouped(event.start)} ns`, event.id.includes(".mark.") ? "–" : time(event.duration),
    ])),
  ];
}

/**
 * @param {Together} together
 * @param {Actions} actions
 */
export function collectiveContent(together, actions) {
  const { operation, group, last, members, num_members: numMembers } = together;
  const said = last === null ? "who came last is not known" : `rank ${last} came last`;
  return [
    make("header", {}, make("h2", {}, `${operation} on ${numMembers} ranks`),
      make("span", { class: "note" }, group ? `${group} · ${said}` : said)),
    table("its ranks", ["rank", "start", "duration", "wait"], members.map((member, index) => [
      button(`rank ${member.rank}`, `select the kernel of rank ${member.rank}`,
        () => actions.select(member.id)),
      seconds(member.begin), duration(member.length), memberText(together, index),
    ])),
  ];
}

/**
 * The waits of a step, the longest parts first.
 * @param {StepPath} path
 * @param {Actions} actions
 */
export function pathContent(path, actions) {
  const { step, rank, length, numParts, parts } = path;
  const longest = parts.toSorted((one, other) => other.length - one.length).slice(0, MAX_PARTS);
  const whose = step === "all" ? "the training" : `step ${step}`;
  return [
    make("header", {},
      make("h2", {}, `Critical path of ${whose}: ${duration(length)}`),
      make("span", { class: "note" }, `on rank ${rank} · what its end waited for: to shorten`
        + " anything else gains nothing"),
      button("close", "draw the critical path no more (K)", actions.path)),
    make("p", {}, `${sharesText(path)}.`),
    table(`the longest of its ${grouped(numParts)} parts`,
      ["part", "kind", "rank", "start", "duration", "share"], longest.map((part) => [
        button(part.name, `show ${part.name}`, () => actions.part(part)), part.kind,
        String(part.rank), seconds(part.begin), duration(part.length),
        percent(part.length / Math.max(length, 1))])),
  ];
}
