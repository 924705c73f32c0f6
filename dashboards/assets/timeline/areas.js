// @ts-check
// An area of the timeline, rows and a range of time: its events by name, and one by one.
import { AXIS } from "./geometry.js";
import { areaContent, eventsContent } from "./lists.js";
/** @import { Timeline } from "./timeline.js" */
/** @import { Area, Interval } from "./types.d.ts" */

const MAX_ROWS = 200; // most rows of one request
const NO_AREA = new Set(["step", "sample"]); // sources of rows without countable events

export class TimelineAreas {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {Area | null} */
    this.area = null;
  }

  /** The area of all rows in sight and all of the view. */
  inSight() {
    const { view, panel } = this.timeline;
    if (!view) return null;
    return this.#between(AXIS, panel.scroller.clientHeight, {
      start: view.start, end: view.start + view.span,
    });
  }

  /**
   * @param {number} from
   * @param {number} to
   * @param {Interval} interval
   */
  #between(from, to, { start, end }) {
    const [top, bottom] = [Math.min(from, to), Math.max(from, to)];
    const rows = this.timeline.rows
      .filter((row) => row.track && !NO_AREA.has(row.track.source) && row.top < bottom && row.top + row.height > top)
      .flatMap((row) => (row.track ? [row.track.row] : []));
    return { start: Math.min(start, end), end: Math.max(start, end), rows: rows.slice(0, MAX_ROWS) };
  }

  /**
   * Keep the area between two places on the canvas, and show what ran there.
   * @param {{ x: number, y: number }} from
   * @param {{ x: number, y: number }} to
   */
  select(from, to) {
    const { timeline } = this;
    const interval = { start: timeline.timeAt(from.x), end: timeline.timeAt(to.x) };
    return this.show(this.#between(from.y, to.y, interval));
  }

  /** Show the time by name: of the area that is kept, or of the view. */
  statistics() {
    const area = this.area ?? this.inSight();
    return area && this.show(area);
  }

  /** @param {Area} area */
  async show(area) {
    const { timeline } = this;
    timeline.forgetSelection();
    this.area = area;
    timeline.refresh();
    await this.#ask(area, async () => {
      const statistics = await timeline.data.answer("area", area);
      if (this.area === area) timeline.panel.show(...areaContent(area, statistics, timeline));
    });
  }

  /** List the events of the area that is kept, or of the view. */
  async list() {
    const { timeline } = this;
    const area = this.area ?? this.inSight();
    if (!area) return;
    await this.#ask(area, async () => {
      const listed = await timeline.data.answer("events", area);
      timeline.panel.show(...eventsContent(area, listed, timeline));
    });
  }

  /**
   * @param {Area} area
   * @param {() => Promise<void>} act
   */
  async #ask(area, act) {
    const { panel } = this.timeline;
    if (!area.rows.length || area.end - area.start < 1) {
      panel.showMessage("There is no row in this area.");
      return;
    }
    try {
      await act();
    } catch (error) {
      panel.showMessage(/** @type {Error} */ (error).message);
    }
  }

  /** @param {string} key of a row */
  nameOf(key) {
    const { data, numbers } = this.timeline;
    const rank = Number(key.split(".")[0]);
    const track = data.ranks.get(rank)?.rows.find(({ row }) => row === key);
    const label = track ? track.label : key;
    return numbers.length > 1 ? `rank ${rank} · ${label}` : label;
  }
}
