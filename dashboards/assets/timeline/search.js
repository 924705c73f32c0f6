// @ts-check
// Searches all ranks that can be chosen for events by their names.
/** @import { Timeline } from "./timeline.js" */
/** @import { Matches } from "./types.d.ts" */

export class TimelineSearch {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
  }

  // Say how many match, without going anywhere.
  async count() {
    const matches = await this.#ask("next");
    if (matches) this.timeline.panel.showMatches(matches);
  }

  /**
   * Select the next or the previous match.
   * @param {"next" | "previous"} direction
   */
  async go(direction) {
    const { panel, selected } = this.timeline;
    const matches = await this.#ask(direction, selected?.id);
    if (!matches) return;
    panel.showMatches(matches);
    panel.names.hidden = true;
    if (matches.next) await this.timeline.select(matches.next.id, { go: true });
  }

  /**
   * Search for a name that the panel lists; of a long one it shows the beginning.
   * @param {string} label
   */
  goTo(label) {
    this.timeline.panel.query.value = label.replace(/…$/, "");
    this.go("next");
  }

  /**
   * @param {string} direction
   * @param {string} [from]
   * @returns {Promise<Matches | null>}
   */
  async #ask(direction, from) {
    const { data, numbers, panel, view } = this.timeline;
    const text = panel.query.value;
    if (!text || !view) {
      panel.forgetMatches();
      return null;
    }
    try {
      return await data.search(numbers, text, direction, view.start, from);
    } catch (error) {
      panel.showMessage(/** @type {Error} */ (error).message);
      return null;
    }
  }
}
