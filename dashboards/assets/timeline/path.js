// @ts-check
// The critical path of a step: asked for on demand, kept until it is dismissed.
import { INK } from "./colors.js";
import { GUTTER } from "./geometry.js";
import { pathContent } from "./lists.js";
import { holds } from "./view.js";
/** @import { TimelinePainter } from "./painter.js" */
/** @import { Timeline } from "./timeline.js" */
/** @import { Draw, PathPart, PathReply, PathWhere, Row, State, StepPath } from "./types.d.ts" */
/** @typedef {Extract<PathReply, { state: "known" }>} KnownPath */

const POLL_MS = 500; // the server computes it in the background
const SHARE = 0.9; // of the view
const PART_SHARE = 0.3;
const MIN_WIDTH = 0.7; // of a part
const MIN_LABELLED = 40; // width of a part that may have its name in it
const UNDERLINE = 4; // pixels
const GREY = "step"; // the kind of row that has the colour of delays

/**
 * @param {KnownPath} reply
 * @param {(time: string) => number} toOffset
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

  /** @param {string | null} step */
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
    if (this.shown) this.timeline.panel.show(...pathContent(this.shown, this.timeline));
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

/**
 * The row of the path: its parts one behind the other, in the colours of what they are.
 * @param {TimelinePainter} painter
 * @param {Row} row
 * @param {StepPath} path
 */
export function drawPathRow(painter, { top, height }, { parts }) {
  const { context, shades } = painter;
  for (const { kind, name, begin, length } of parts) {
    const left = painter.x(begin);
    const width = Math.max(painter.x(begin + length) - left, MIN_WIDTH);
    if (left + width < GUTTER || left > painter.width) continue;
    context.fillStyle = (shades[kind] ?? shades[GREY] ?? shades.host)[0];
    context.fillRect(left, top + 2, width, height - 4);
    const from = Math.max(left, GUTTER);
    const room = Math.min(left + width, painter.width) - from - 7;
    if (room < MIN_LABELLED) continue;
    context.fillStyle = INK;
    context.fillText(painter.fitting(name, room), from + 4, top + height / 2 + 0.5);
  }
}

/**
 * The part of the path that ran in rows: underlined, and joined where it goes on in another row.
 * @type {Draw}
 */
export function drawPath(painter, { path, rowOf }) {
  if (!path) return;
  const { context, theme } = painter;
  /** @type {{ x: number, row: Row } | null} */
  let before = null;
  for (const part of path.parts) {
    const row = part.row === null ? undefined : rowOf(part.row);
    if (!row) continue;
    const left = painter.x(part.begin);
    const right = Math.max(painter.x(part.begin + part.length), left + 1);
    if (right >= GUTTER && left <= painter.width) {
      context.fillStyle = theme.high;
      context.fillRect(left, row.top + row.height - UNDERLINE, right - left, UNDERLINE);
    }
    if (before && before.row !== row && before.x <= painter.width && left >= GUTTER) {
      context.strokeStyle = theme.high;
      context.lineWidth = 1.2;
      context.beginPath();
      context.moveTo(before.x, before.row.top + before.row.height - UNDERLINE / 2);
      context.lineTo(left, row.top + row.height - UNDERLINE / 2);
      context.stroke();
    }
    before = { x: right, row };
  }
}
