// @ts-check
// Arithmetic of views: a view is {start, span}, an extent or an interval {start, end}, all in ns.
// Functions return new views and change nothing.
/** @import { Interval, View } from "./types.d.ts" */

const MIN_SPAN = 10; // of a view
const MIN_EXTENT = 1000;
const FRAMED = 0.6; // of a view, which an interval fills
const FOUND = 0.04; // of the view, with its surroundings
const MIN_PIXELS = 3; // of an event that can be seen

/**
 * The view inside of the extent; in the middle of one that is shorter than any view.
 * @param {View} view
 * @param {Interval} extent
 */
export function clamped({ start, span }, extent) {
  const length = extent.end - extent.start;
  const within = Math.min(Math.max(span, MIN_SPAN), Math.max(length, MIN_EXTENT));
  if (within > length) return centered({ start, span: within }, extent.start + length / 2);
  return { start: Math.min(Math.max(start, extent.start), extent.end - within), span: within };
}

/**
 * The view `factor` times as wide, with the time `at` where it was.
 * @param {View} view
 * @param {number} factor
 * @param {number} at
 * @param {Interval} extent
 */
export function zoomed({ start, span }, factor, at, extent) {
  const wide = clamped({ start, span: span * factor }, extent).span;
  return { start: at - ((at - start) / span) * wide, span: wide };
}

/**
 * @param {View} view
 * @param {number} share
 */
export const panned = ({ start, span }, share) => ({ start: start + share * span, span });

/**
 * A view with an interval in its middle, which fills a share of it.
 * @param {number} start
 * @param {number} end
 * @param {number} [share]
 */
export function framed(start, end, share = FRAMED) {
  const span = Math.max(end - start, MIN_SPAN) / share;
  return { start: (start + end) / 2 - span / 2, span };
}

/**
 * @param {View} view
 * @param {number} time
 */
export const centered = ({ span }, time) => ({ start: time - span / 2, span });

/**
 * @param {View} view
 * @param {Interval} interval
 */
export const holds = (view, { start, end }) =>
  start >= view.start && end <= view.start + view.span;

/**
 * The view that brings an interval in sight, null where it is: moved, and zoomed only where the
 * interval would be too narrow or too wide to be seen, which a moment never is. `width`: of the view,
 * in pixels.
 * @param {View} view
 * @param {Interval} interval
 * @param {number} width
 */
export function bringingIn(view, interval, width) {
  const { start, end } = interval;
  const share = (end - start) / view.span;
  if (share > 1 || (share > 0 && share < MIN_PIXELS / width)) return framed(start, end, FOUND);
  if (holds(view, interval)) return null;
  return centered(view, (start + end) / 2);
}

/** @param {({ start?: number, end?: number } | undefined)[]} ranks */
export function extentOf(ranks) {
  const known = ranks.flatMap((rank) =>
    (rank?.start === undefined || rank.end === undefined ? [] : [{ start: rank.start, end: rank.end }]));
  if (!known.length) return { start: 0, end: 1e9 };
  return {
    start: Math.min(...known.map((rank) => rank.start)),
    end: Math.max(...known.map((rank) => rank.end)),
  };
}

const PAUSE_MS = 700; // after which a movement is one of its own
const MAX_VIEWS = 50;

/** The history of views. A drag or a turn of the wheel makes many; one of them is kept. */
export class ViewHistory {
  constructor() {
    /** @type {View[]} */
    this.views = [];
    this.last = -Infinity;
  }

  /**
   * @param {View} view
   * @param {number} now ms
   * @param {boolean} jump whether it is left at once, not by moving
   */
  note(view, now, jump) {
    if (jump || now - this.last > PAUSE_MS) this.views.push({ ...view });
    if (this.views.length > MAX_VIEWS) this.views.shift();
    this.last = now;
  }

  /** The view to go back to; undefined where there is none. */
  back() {
    return this.views.pop();
  }

  /** Forget the last one that was noted: going back is nothing to go back from. */
  forgetNote() {
    this.views.pop();
    this.last = -Infinity;
  }
}
