// @ts-check
// The panel's lists: an area, its events, and a collective on all of its ranks.
import { button, make } from "../elements.js";
import { counted, duration, grouped, seconds, sizeText } from "./time.js";
/** @import { Timeline } from "./timeline.js" */
/** @import { Area, Block, Collective, Found, FoundEvent, Listed, Statistics, StepPath, Summary, Together } from "./types.d.ts" */
/** @typedef {{ ordered(column: number): "ascending" | "descending" | null, use(column: number): void }} Sorting */

const MAX_PARTS = 30; // of a critical path, that are listed

/**
 * A table; the first column and places are text, the others are numbers unless they are elements.
 * @param {string} label
 * @param {string[]} heads
 * @param {(string | Node)[][]} rows
 * @param {Sorting} [sorting]
 */
function table(label, heads, rows, sorting) {
  const kind = (/** @type {number} */ column) =>
    (column && heads[column] !== "place" ? { class: "number" } : {});
  const heading = (/** @type {string} */ head, /** @type {number} */ column) => {
    if (!sorting) return make("th", { scope: "col", ...kind(column) }, head);
    const order = sorting.ordered(column);
    return make("th", { scope: "col", ...kind(column), "aria-sort": order ?? "none" },
      button(order ? `${head} ${order === "ascending" ? "▴" : "▾"}` : head, `sort by ${head}`,
        () => sorting.use(column)));
  };
  return make("table", { "aria-label": label },
    make("thead", {}, make("tr", {}, ...heads.map((head, column) => heading(head, column)))),
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

/**
 * The head of the panel: what is shown, a note, and buttons.
 * @param {string} title
 * @param {string} note
 * @param {...HTMLElement} buttons
 */
const head = (title, note, ...buttons) =>
  make("header", {}, make("h2", {}, title), make("span", { class: "note" }, note), ...buttons);

/** @param {number} rest of names that are not listed */
const moreNames = (rest) =>
  (rest > 0 ? [make("p", { class: "note" }, `and ${grouped(rest)} more names`)] : []);

const time = (/** @type {string} */ ns) => duration(Number(ns));
const percent = (/** @type {number} */ share) => `${(100 * share).toFixed(1)} %`;

/**
 * @param {Area} area
 * @param {Statistics} statistics
 * @param {Timeline} timeline
 */
export function areaContent(area, { count, names, rows, num_names: numNames }, timeline) {
  const length = area.end - area.start;
  return [
    head(`${counted(count, "event")} in ${duration(length)}`, `on ${counted(rows.length, "row")}`,
      button("zoom", "zoom to this area", () => timeline.frame(area.start, area.end, 1)),
      button("events", "list these events (E)", () => timeline.areas.list())),
    make("div", { class: "timeline-tables" },
      table("what ran, by name", ["name", "of", "events", "time together", "share", "longest"],
        names.map((entry) => [entry.name, SOURCES[entry.source] ?? entry.source, grouped(entry.count),
          ...(entry.source === "mark" ? ["–", "–", "–"] :
            [time(entry.total), percent(entry.share), time(entry.longest)])])),
      table("rows", ["row", "events", "busy", "idle", "busy share"],
        rows.map((row) => [timeline.areas.nameOf(row.row), grouped(row.count), time(row.busy), time(row.idle),
          percent(Number(row.busy) / Math.max(length, 1))]))),
    ...moreNames(numNames - names.length),
  ];
}

/**
 * @param {Area} area
 * @param {Listed} listed
 * @param {Timeline} timeline
 */
export function eventsContent(area, { count, events }, timeline) {
  const shown = events.length < count ? `the first ${grouped(events.length)} of them` : "all of them";
  return [
    head(`${counted(count, "event")} in ${duration(area.end - area.start)}`, shown,
      button("statistics", "what ran, by name (T)", () => timeline.areas.statistics())),
    table("events", ["event", "row", "start", "duration"], events.map((event) => [
      button(event.label, `select ${event.label}`, () => timeline.select(event.id, { go: true })),
      timeline.areas.nameOf(event.row), `${grouped(event.start)} ns`, event.id.includes(".mark.") ? "–" : time(event.duration),
    ])),
  ];
}

/**
 * @param {Collective} collective
 * @param {number} index of the member
 */
export function memberText({ last, members }, index) {
  const { rank, wait } = members[index];
  if (wait === null) return "how long it waited is not known: the clocks leave it open";
  if (rank === last) return "came last";
  return `waited ${duration(Number(wait))}`;
}

/**
 * @param {Together} together
 * @param {Timeline} timeline
 */
export function collectiveContent(together, timeline) {
  const { operation, group, last, members, num_members: numMembers } = together;
  const said = last === null ? "who came last is not known" : `rank ${last} came last`;
  return [
    head(`${operation} on ${numMembers} ranks`, group ? `${group} · ${said}` : said),
    table("its ranks", ["rank", "start", "duration", "wait"], members.map((member, index) => [
      button(`rank ${member.rank}`, `select the kernel of rank ${member.rank}`,
        () => timeline.select(member.id, { go: true })),
      seconds(member.begin), duration(member.length), memberText(together, index),
    ])),
  ];
}

/**
 * "compute 59.1 %, communication 31.4 %": what the parts of each kind take of the step.
 * @param {StepPath} path
 */
export const sharesText = ({ kinds, length }) =>
  kinds.map(({ kind, ns }) => `${kind} ${((100 * ns) / Math.max(length, 1)).toFixed(1)} %`).join(", ");

/**
 * @param {StepPath} path
 * @param {Timeline} timeline
 */
export function pathContent(path, timeline) {
  const { step, rank, length, numParts, parts } = path;
  const longest = parts.toSorted((one, other) => other.length - one.length).slice(0, MAX_PARTS);
  const steps = step.includes("-") ? `steps ${step.replace("-", " to ")}` : `step ${step}`;
  const whose = step === "all" ? "the training" : steps;
  return [
    head(`Critical path of ${whose}: ${duration(length)}`,
      `on rank ${rank} · what its end waited for: to shorten anything else gains nothing`,
      button("close", "draw the critical path no more (K)", () => timeline.path.toggle())),
    make("p", {}, `${sharesText(path)}.`),
    table(`the longest of its ${grouped(numParts)} parts`,
      ["part", "kind", "rank", "start", "duration", "share"], longest.map((part) => [
        button(part.name, `show ${part.name}`, () => timeline.path.choose(part)), part.kind,
        String(part.rank), seconds(part.begin), duration(part.length),
        percent(part.length / Math.max(length, 1))])),
  ];
}

/**
 * Many events in a piece of a row: which take most of its time, or what was sampled.
 * @param {Block} block
 * @param {Summary} summary
 * @param {Timeline} timeline
 */
export function blockContent({ start, end, share }, summary, timeline) {
  const { count, names, num_names: numNames, said } = summary;
  const length = duration(end - start);
  if (said) return [make("p", { class: "note" }, `${said.join("; ")}; in ${length}`)];
  const hasLength = takesTime(summary);
  return [
    head(counted(count, "event"), `in ${length}${hasLength ? `, ${(share / 10).toFixed(1)} % covered` : ""}`,
      button("zoom in", "zoom to these events", () => timeline.fit())),
    table("names", ["name", "events", ...(hasLength ? ["time together", "longest"] : [])],
      names.map((name) => [name.name, grouped(name.count),
        ...(hasLength ? [time(name.total), time(name.longest)] : [])])),
    ...moreNames(numNames - names.length),
  ];
}

/** @type {(keyof FoundEvent)[]} */
export const FOUND = ["name", "duration", "rank", "step", "bytes", "start", "place"];
const HEADS = ["name", "duration", "rank", "step", "size", "start", "place"];
const known = (/** @type {any} */ value, /** @type {(value: any) => string} */ write) =>
  (value === null ? "–" : write(value));
const LARGEST_FIRST = new Set(["duration", "bytes"]);

/**
 * What is found, in the order of a column; with a minus the largest first.
 * @param {Found} found
 * @param {string} order
 * @param {Timeline} timeline
 */
export function foundContent({ count, events, is_all: isAll }, order, timeline) {
  if (!count && isAll) return [make("p", { class: "note" }, "Nothing is found.")];
  const column = order.replace("-", "");
  const rows = events.map((event) => {
    const shown = button(event.name, `select ${event.name}`, () => timeline.search.choose(event.id));
    if (event.id === timeline.selected?.id) shown.setAttribute("aria-current", "true");
    return [shown, known(event.duration, duration), String(event.rank), known(event.step, String),
      known(event.bytes, sizeText), seconds(timeline.data.toOffset(event.start)), known(event.place, String)];
  });
  /** @type {Sorting} */
  const sorting = {
    ordered: (at) => (FOUND[at] === column ? (order === column ? "ascending" : "descending") : null),
    use: (at) => {
      const isReversed = FOUND[at] === column ? order === column : LARGEST_FIRST.has(FOUND[at]);
      timeline.search.list(`${isReversed ? "-" : ""}${FOUND[at]}`);
    },
  };
  const shown = events.length < count ? `the first ${grouped(events.length)} of them` : "all of them";
  return [
    head(counted(count, "event"), isAll ? shown : `${shown} so far: reading calls and ranges …`,
      button("save as CSV", "save the list as CSV", () => timeline.search.save())),
    table("what is found", HEADS, rows, sorting),
  ];
}
