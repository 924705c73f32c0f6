// @ts-check
// The critical path of a step: asked for on demand, kept until it is dismissed.
import { pathContent } from "./lists.js";
import { holds } from "./view.js";
/** @import { Timeline } from "./timeline.js" */
/** @import { PathPart, PathReply, PathWhere, StepPath } from "./types.d.ts" */
/** @typedef {Extract<PathReply, { state: "known" }>} KnownPath */

const POLL_MS = 500; // the server computes it in the background
const SHARE = 0.9; // of the view
const PART_SHARE = 0.3;

/**
 * The parts of the server's answer that are drawn.
 * @param {KnownPath} reply
 * @param {(time: string) => number} toOffset
 * @returns {StepPath}
 */
export function pathOf(reply, toOffset) {
  const parts = reply.parts.map((part) => ({ ...part, begin: toOffset(part.start) }));
  return {
    step: reply.step, rank: reply.rank, length: Number(reply.length), numParts: reply.num_parts,
    kinds: Object.entries(reply.kinds).map(([kind, ns]) => ({ kind, ns: Number(ns) })),
    parts,
  };
}

/**
 * The part at a time: the latest that has begun, since those of other ranks can run over it.
 * @param {PathPart[]} parts
 * @param {number} time
 */
export const partAt = (parts, time) =>
  parts.findLast(({ begin, length }) => begin <= time && time < begin + length);

export class TimelinePath {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {StepPath | null} */
    this.shown = null;
    /** @type {string | null} */
    this.step = null; // that is shown or asked for
    this.asked = 0;
  }

  // Show the path of the step that the selection is in, else of those in view.
  toggle() {
    const { opened, selected, view } = this.timeline;
    if (this.step !== null) {
      this.forget();
      this.timeline.panel.showNothing();
    } else if (view) {
      const rank = selected ? Number(selected.id.split(".")[0]) : ([...opened][0] ?? 0);
      const [start, length] = selected ? [selected.begin, 1] : [view.start, view.span];
      this.ask({ rank, start, end: start + Math.max(length, 1) });
    }
  }

  /**
   * Apply the address.
   * @param {string | null} step
   */
  restore(step) {
    if (step === this.step) this.describe();
    else if (step === null) this.forget();
    else this.ask({ step });
  }

  forget() {
    this.asked += 1;
    this.step = this.shown = null;
    this.timeline.layout.hasPath = false;
    this.timeline.note();
    this.timeline.refresh();
  }

  /** @param {PathWhere} where steps, or a time of a rank */
  async ask(where) {
    const { data, panel, root } = this.timeline;
    this.asked += 1;
    const { asked } = this;
    this.step = "step" in where ? where.step : "";
    panel.showMessage("Working out the critical path …");
    for (let place = where; ;) {
      /** @type {PathReply} */
      let reply;
      try {
        reply = await data.answer("path", place);
      } catch (error) {
        if (asked === this.asked) this.#refuse(/** @type {Error} */ (error).message);
        return;
      }
      if (asked !== this.asked || !root.isConnected) return;
      if (reply.state === "known") return this.#show(pathOf(reply, (time) => data.toOffset(time)));
      if (reply.state === "unknown") return this.#refuse(`The critical path is not known: ${reply.why}`);
      place = { step: reply.step };
      await new Promise((resolve) => { setTimeout(resolve, POLL_MS); });
    }
  }

  /** @param {string} why */
  #refuse(why) {
    this.forget();
    this.timeline.panel.showMessage(why);
  }

  /** @param {StepPath} path */
  #show(path) {
    const { timeline } = this;
    this.shown = path;
    this.step = path.step;
    timeline.layout.hasPath = true;
    this.describe();
    const first = path.parts[0];
    const last = path.parts.at(-1);
    const interval = first && last && { start: first.begin, end: last.begin + last.length };
    if (interval && timeline.view && !holds(timeline.view, interval)) {
      timeline.frame(interval.start, interval.end, SHARE);
    }
    timeline.note();
    timeline.refresh();
  }

  // Show again what it is made of.
  describe() {
    if (this.shown) this.timeline.panel.show(...pathContent(this.shown, this.timeline.panel.actions));
  }

  /**
   * Bring a part into view, and select the operation that it is.
   * @param {PathPart} part
   */
  async choose(part) {
    const { timeline } = this;
    const [start, end] = [part.begin, part.begin + part.length];
    if (!timeline.numbers.includes(part.rank)) {
      timeline.panel.showMessage(`${part.name} is of rank ${part.rank}, which is not among those chosen.`);
      return;
    }
    if (part.row === null) {
      timeline.frame(start, end, PART_SHARE);
      return;
    }
    const { events } = await timeline.data.answer("events", { rows: part.row, start, end: Math.max(end, start + 1) });
    const event = events.find((listed) => listed.start === part.start) ?? events[0];
    if (event) await timeline.select(event.id, { go: true });
  }
}
