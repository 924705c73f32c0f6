// @ts-check
// Timelines that zoom and move together, each on a clock of its own: the sides of a comparison.
import { extentOf } from "./view.js";

/** @import { Timeline } from "./timeline.js" */
/** @import { Interval, View } from "./types.d.ts" */

export class LinkedTimelines {
  constructor() {
    /** @type {Set<Timeline>} */
    this.timelines = new Set();
    /** @type {Timeline | null} */
    this.active = null; // the timeline that takes keys: the last one under the pointer or in focus
    /** @type {Interval} */
    this.home = { start: 0, end: 1 };
    /** @type {View | null} */
    this.view = null;
  }

  /** @param {Timeline} timeline */
  add(timeline) {
    this.timelines.add(timeline);
    this.active ??= timeline;
    for (const what of ["pointerenter", "focusin", "pointerdown"]) {
      timeline.root.addEventListener(what, () => { this.active = timeline; });
    }
  }

  /** @param {Timeline} timeline that another one takes the place of */
  remove(timeline) {
    this.timelines.delete(timeline);
    if (this.active === timeline) this.active = null;
  }

  extent() {
    return extentOf([...this.timelines].flatMap(({ opened, data }) =>
      [...opened].map((number) => data.ranks.get(number))));
  }

  /**
   * @param {Timeline} timeline whose view changed
   * @param {View} view
   */
  moved(timeline, view) {
    this.view = view;
    for (const other of this.timelines) if (other !== timeline) other.follow(view);
  }

  /**
   * @param {Timeline} timeline on which the pointer is
   * @param {number | null} x
   */
  pointed(timeline, x) {
    for (const other of this.timelines) {
      if (other === timeline) continue;
      other.pointer.x = x;
      other.refresh();
    }
  }
}
