// @ts-check
// One side of a comparison: the chosen rank and step, and its timeline.
import { parameter, timelineAt } from "../address.js";
import { ask } from "../timeline/data.js";
import { make } from "../elements.js";
import { duration } from "../timeline/time.js";
import { Timeline } from "../timeline/timeline.js";

/** @import { ComparedTimelines } from "./timelines.js" */
/** @typedef {{ name: "before" | "after", path: string, rank: number, step: number | null,
 *   ranks: { number: number, label: string }[] }} Side as dashboards/pages/compare.py describes it */
/** @typedef {{ number: number | null, start: string, length: number }} Step ns; the number is null where all that is
 *   judged is one */

/**
 * The rank and step in an address, such as `3.12`; else the side's own proposal.
 * @param {string | null} text
 * @param {Side} side
 */
export function chosenIn(text, side) {
  const [rank, step] = text === null ? [side.rank, side.step] : text.split(".").map(Number);
  if (!side.ranks.some(({ number }) => number === rank)) return { rank: side.rank, step: side.step };
  return { rank: rank ?? side.rank, step: step ?? null };
}

/** @param {Step} step */
export const stepLabel = ({ number, length }) =>
  `${number === null ? "the training" : `step ${number}`} · ${duration(length)}`;

export class ComparedSide {
  /**
   * @param {ComparedTimelines} compared
   * @param {Side} side
   */
  constructor(compared, side) {
    this.compared = compared;
    this.side = side;
    const chosen = chosenIn(parameter(location.href, side.name), side);
    this.rank = chosen.rank;
    this.wanted = chosen.step;
    /** @type {Step[]} */
    this.steps = [];
    /** @type {Step | null} */
    this.step = null;
    /** @type {Timeline | null} */
    this.timeline = null;
    this.ranks = make("select", { "aria-label": `${side.name}: rank`, onchange: () => this.show() },
      ...side.ranks.map(({ number, label }) => make("option", { value: number }, label)));
    this.ranks.value = String(this.rank);
    this.choice = make("select", { "aria-label": `${side.name}: step`, onchange: () => this.#draw() });
    this.note = make("span", { class: "note" });
    this.link = make("a", {}, "on the timeline");
    this.link.hidden = side.name !== "after"; // the timeline is of this run
    this.place = make("div", { class: "timeline linked" });
    this.section = make("section", { class: "compared-side", "aria-label": side.name },
      make("header", {}, make("h4", {}, side.name), this.ranks, this.choice, this.note, this.link), this.place);
  }

  /** Show the chosen step of the rank, or its middle one if it has no such step. */
  async show() {
    const { side } = this;
    const rank = Number(this.ranks.value);
    this.rank = rank;
    try {
      const { steps } = await ask(`${side.path}/steps`, { rank });
      if (rank !== this.rank) return; // another page was opened
      this.steps = /** @type {Step[]} */ (steps);
    } catch (error) {
      this.note.textContent = /** @type {Error} */ (error).message;
      return;
    }
    this.choice.replaceChildren(...this.steps.map((step, index) =>
      make("option", { value: index }, stepLabel(step))));
    const place = this.steps.findIndex(({ number }) => number === this.wanted);
    this.choice.value = String(place < 0 ? Math.floor(this.steps.length / 2) : place);
    this.#draw();
  }

  #draw() {
    const { compared, rank, side } = this;
    const step = this.steps[Number(this.choice.value)];
    if (!step) return;
    this.step = step;
    this.wanted = step.number;
    this.note.textContent = "";
    const end = BigInt(step.start) + BigInt(step.length);
    this.link.href = timelineAt(rank, step.start, end);
    if (this.timeline) compared.linked.remove(this.timeline);
    const root = make("div", {
      class: "timeline linked", "data-ranks": JSON.stringify([rank]), "data-labels": "{}",
      "data-opened": JSON.stringify([rank]), "data-colors": compared.colors, "data-base": step.start,
      "data-time": "time since the step's start", "data-path": side.path,
    });
    this.place.replaceWith(root);
    this.place = root;
    compared.changed();
    this.timeline = new Timeline(root, compared.linked);
    Object.assign(root, { timeline: this.timeline });
    this.#mark(this.timeline, { rank, start: step.start, end: String(end) });
  }

  /**
   * @param {Timeline} timeline
   * @param {{ rank: number, start: string, end: string }} place
   */
  async #mark(timeline, place) {
    const { changed } = await ask(`${this.side.path}/changed`, place);
    await timeline.data.mark(place.rank, changed);
  }
}
