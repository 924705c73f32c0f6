// @ts-check
// A step of each side of a comparison: the choice of rank and step, and timelines below each other
// that zoom and move together, in the element that dashboards/pages/compare.py makes. Each step
// begins at 0.
import { withSteps } from "../address.js";
import { LinkedTimelines } from "../timeline/linked.js";
import { ComparedSide } from "./side.js";

/** @import { Side } from "./side.js" */

export class ComparedTimelines {
  /** @param {HTMLElement} root */
  constructor(root) {
    this.root = root;
    this.colors = root.dataset["colors"] ?? "{}";
    /** @type {Side[]} */
    const sides = JSON.parse(root.dataset["sides"] ?? "[]");
    this.linked = new LinkedTimelines();
    this.sides = sides.map((side) => new ComparedSide(this, side));
    root.replaceChildren(...this.sides.map(({ section }) => section));
    Object.assign(root, { compared: this });
    for (const side of this.sides) side.show();
  }

  /** Show all of the longer step, and note the chosen steps in the address. */
  changed() {
    const lengths = this.sides.map(({ step }) => step?.length ?? 0);
    this.linked.home = { start: 0, end: Math.max(...lengths, 1) };
    if (this.sides.some(({ step }) => step === null)) return; // not known yet
    for (const { timeline } of this.sides) if (timeline?.view) timeline.home();
    const choices = Object.fromEntries(this.sides.map(({ side, rank, step }) =>
      [side.name, step?.number === null ? String(rank) : `${rank}.${step?.number}`]));
    history.replaceState(history.state, "", withSteps(location.href, choices));
  }

  redraw() {
    for (const { timeline } of this.sides) timeline?.refresh();
  }
}

/** @param {HTMLElement} root */
export const comparisonOf = (root) => new ComparedTimelines(root);
