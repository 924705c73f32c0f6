// @ts-check
// Searches all ranks that can be chosen for events by name, label and conditions.
/** @import { Timeline } from "./timeline.js" */
/** @import { Matches } from "./types.d.ts" */

const AGAIN_MS = 500; // while calls and ranges are being read

export class TimelineSearch {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    this.again = 0;
  }

  // Show how many match, without moving the view; again once everything is read.
  async count() {
    const { selected, view } = this.timeline;
    const matches = await this.#ask("next", undefined, selected?.begin ?? view?.start);
    if (matches) this.#show(matches);
    this.timeline.refresh(); // marks on the axis
  }

  /** @param {Matches} matches */
  #show(matches) {
    const { panel, root } = this.timeline;
    const text = panel.query.value;
    panel.showMatches(matches);
    clearTimeout(this.again);
    if (matches.is_all) return;
    this.again = setTimeout(() => {
      if (root.isConnected && panel.query.value === text) this.#recount();
    }, AGAIN_MS);
  }

  // Show how many match now, and leave the list of names as it is.
  async #recount() {
    const { names } = this.timeline.panel;
    const isHidden = names.hidden;
    await this.count();
    names.hidden ||= isHidden;
  }

  /**
   * Select the next or the previous match.
   * @param {"next" | "previous"} direction
   */
  async go(direction) {
    const { panel, selected } = this.timeline;
    const matches = await this.#ask(direction, selected?.id);
    if (!matches) return;
    this.#show(matches);
    panel.names.hidden = true;
    if (matches.next) await this.timeline.select(matches.next.id, { go: true });
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
