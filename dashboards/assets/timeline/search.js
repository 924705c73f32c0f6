// @ts-check
// Searches all ranks that can be chosen for events by name, label and conditions.
import { saved } from "../tables.js";
import { download } from "../elements.js";
import { FOUND, foundContent } from "./lists.js";
/** @import { Timeline } from "./timeline.js" */
/** @import { Found, Matches } from "./types.d.ts" */

const AGAIN_MS = 500; // while calls and ranges are being read
const MAX_LISTED = 200;
const MAX_SAVED = 100_000;
const UNITS = { duration: "duration (ns)", start: "start (ns)", bytes: "size (bytes)" };

const written = (/** @type {any} */ value) => {
  const text = String(saved({ value }));
  return /[",\r\n]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
};

/** @param {Found} found */
export function csvOf({ events }) {
  const columns = [...FOUND, /** @type {const} */ ("id")];
  const heads = columns.map((column) => /** @type {Record<string, string>} */ (UNITS)[column] ?? column);
  const rows = events.map((event) => columns.map((column) =>
    written(column === "start" ? BigInt(event.start) : event[column])));
  return [heads, ...rows].map((row) => `${row.join(",")}\r\n`).join("");
}

export class TimelineSearch {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    this.again = 0;
    /** @type {string | null} */
    this.order = null; // of the list, where that is shown
    /** @type {Found | null} */
    this.listed = null;
  }

  // Show how many match, without moving the view; again once everything is read.
  async count() {
    const { selected, view } = this.timeline;
    const matches = await this.#ask("next", undefined, selected?.begin ?? view?.start);
    if (matches) this.#show(matches);
    this.timeline.refresh(); // marks on the axis
    if (this.order) await this.list(this.order);
  }

  // List what is found, by default the longest first.
  async list(order = "-duration") {
    const { data, numbers, panel, root } = this.timeline;
    const text = panel.query.value;
    this.order = text ? order : null;
    if (!text) {
      panel.explain("L lists what is searched for: write a name or a condition first");
      return;
    }
    try {
      const listed = await data.answer("matches", { rank: numbers, text, order, most: MAX_LISTED });
      if (this.order !== order || panel.query.value !== text || !root.isConnected) return;
      this.listed = listed;
    } catch (error) {
      panel.showMessage(/** @type {Error} */ (error).message);
      return;
    }
    this.#put(order);
    if (!this.listed.is_all) setTimeout(() => this.order === order && this.list(order), AGAIN_MS);
  }

  /** @param {string} order */
  #put(order) {
    const { panel } = this.timeline;
    if (!this.listed) return;
    const { scrollTop } = panel.detail;
    this.order = order;
    panel.names.hidden = true;
    panel.show(...foundContent(this.listed, order, this.timeline));
    panel.detail.scrollTop = scrollTop;
    this.timeline.note();
  }

  /**
   * Select one of what is found; the list stays.
   * @param {string} id
   */
  async choose(id) {
    const { order, timeline } = this;
    const { scrollTop } = timeline.panel.detail;
    await timeline.select(id, { go: true });
    if (!order || timeline.selected?.id !== id) return;
    this.#put(order);
    timeline.panel.detail.scrollTop = scrollTop;
  }

  // Save what is found as a CSV file, in the order of the list.
  async save() {
    const { data, numbers, panel } = this.timeline;
    if (!this.order) return;
    const listed = await data.answer("matches",
      { rank: numbers, text: panel.query.value, order: this.order, most: MAX_SAVED });
    download(new Blob([csvOf(listed)], { type: "text/csv" }), "found.csv");
  }

  /** @param {Matches} matches */
  #show(matches) {
    const { panel, root } = this.timeline;
    const text = panel.query.value;
    panel.showMatches(matches);
    clearTimeout(this.again);
    if (matches.is_all) return;
    this.again = setTimeout(async () => {
      if (!root.isConnected || panel.query.value !== text) return;
      const isHidden = panel.names.hidden; // stays so, or open
      await this.count();
      panel.names.hidden ||= isHidden;
    }, AGAIN_MS);
  }

  /** @param {"next" | "previous"} direction */
  async go(direction) {
    const { panel, selected } = this.timeline;
    const matches = await this.#ask(direction, selected?.id);
    if (!matches) return;
    this.#show(matches);
    panel.names.hidden = true;
    if (matches.next) await this.choose(matches.next.id);
  }

  /**
   * Search for a name in the panel's list, which shows only the beginning of a long one.
   * @param {string} label
   */
  goTo(label) {
    this.timeline.panel.query.value = label.replace(/…$/, "");
    this.go("next");
  }

  /**
   * @param {string} direction
   * @param {string} [from]
   * @param {number} [at]
   * @returns {Promise<Matches | null>}
   */
  async #ask(direction, from, at) {
    const { data, numbers, panel, view } = this.timeline;
    const text = panel.query.value;
    if (!text || !view) {
      panel.forgetMatches();
      return null;
    }
    try {
      return await data.search(numbers, text, direction, at ?? view.start, from);
    } catch (error) {
      panel.showMessage(/** @type {Error} */ (error).message);
      return null;
    }
  }
}
