// @ts-check
// The reader's notes as marks on the axis of time: a pennant in the middle of the view of each.
import { parameter } from "../address.js";
import { go } from "../navigation.js";
import { KEEPING, KEPT, readNotes } from "../notes.js";
import { AXIS, FLAGS, polygon } from "./geometry.js";

/** @import { Note } from "../notes.js" */
/** @import { Timeline } from "./timeline.js" */
/** @import { TimelinePainter } from "./painter.js" */
/** @import { NoteMark } from "./types.d.ts" */

const [TOP, WIDTH, HEIGHT] = [2, 8, 7]; // of a pennant
const NEAR = 3; // reach of the pointer around it

/**
 * @param {Note[]} notes
 * @param {(time: string) => number} toOffset from a time of the run to one of the timeline
 */
export function marksOf(notes, toOffset) {
  return notes.flatMap(({ href, text, where }) => {
    const address = new URL(href, "http://x").href;
    const [start, end] = [parameter(address, "start"), parameter(address, "end")];
    if (!href.startsWith("/timeline") || start === null || end === null) return [];
    return [{ at: (toOffset(start) + toOffset(end)) / 2, href, lines: [text || "bookmark", where] }];
  });
}

/**
 * The mark at a place on the axis, or null; of several the latest that was kept.
 * @param {NoteMark[]} marks
 * @param {(time: number) => number} x
 * @param {number} pointerX
 * @param {number} pointerY
 */
export function markAt(marks, x, pointerX, pointerY) {
  if (pointerY >= AXIS - FLAGS) return null;
  return marks.findLast(({ at }) => {
    const right = pointerX - x(at);
    return right >= -NEAR && right <= WIDTH + NEAR;
  }) ?? null;
}

/**
 * @param {TimelinePainter} painter
 * @param {NoteMark[]} marks
 */
export function drawNoteMarks(painter, marks) {
  const { context, theme } = painter;
  context.fillStyle = theme.accent;
  for (const { at } of marks) {
    const x = Math.round(painter.x(at));
    context.fillRect(x, TOP, 1, AXIS - FLAGS - TOP);
    polygon(context, [[x, TOP], [x + WIDTH, TOP + HEIGHT / 2], [x, TOP + HEIGHT]]);
    context.fill();
  }
}

export class TimelineNotes {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {NoteMark[]} */
    this.marks = [];
    const removed = new AbortController();
    const listen = (/** @type {string} */ name, /** @type {(event: Event) => void} */ react) =>
      window.addEventListener(name, (event) => {
        if (timeline.root.isConnected) react(event);
        else removed.abort();
      }, { signal: removed.signal });
    listen(KEPT, (event) => this.#show(/** @type {CustomEvent<Note[]>} */ (event).detail));
    listen(KEEPING, () => timeline.place.noteNow());
    this.#read();
  }

  async #read() {
    try {
      this.#show((await readNotes()).notes);
    } catch {
      // The panel reports a server that is gone.
    }
  }

  /** @param {Note[]} notes */
  #show(notes) {
    this.marks = marksOf(notes, (time) => this.timeline.data.toOffset(time));
    this.timeline.refresh();
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  at(x, y) {
    return markAt(this.marks, this.timeline.painter.x, x, y);
  }

  /** @param {NoteMark} mark */
  go({ href }) {
    go(href);
  }
}
