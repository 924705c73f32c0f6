// @ts-check
// The place that keeps a timeline's view: the page's address or, of a linked one, nothing.
import { PageAddress } from "./page_address.js";

/** @import { Timeline } from "./timeline.js" */

/** A linked timeline shows what the others show, or the step at first. */
class LinkedPlace {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    this.noting = 0; // nothing of it is noted in the address
  }

  async restore() {
    const { data, opened, panel, linked } = this.timeline;
    panel.showMessage("Reading the rows …");
    await Promise.all([...opened].map((number) => data.loadRank(number)));
    panel.showNothing();
    if (linked?.view) this.timeline.follow(linked.view);
    else this.timeline.showWhole();
  }

  note() { /* the page that holds it does */ }

  noteNow() { /* as above */ }

  /**
   * Other pages cannot show a part of a step's own time, so it is zoomed to.
   * @param {number} start
   * @param {number} end
   */
  choose(start, end) {
    this.timeline.frame(start, end, 1);
  }
}

/**
 * @param {Timeline} timeline
 * @returns {PageAddress | LinkedPlace}
 */
export const placeOf = (timeline) =>
  (timeline.linked ? new LinkedPlace(timeline) : new PageAddress(timeline));
