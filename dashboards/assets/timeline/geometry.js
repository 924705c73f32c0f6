// @ts-check
// Where things stand on the canvas, in pixels.
/** @import { Interval, Mark, Row, View } from "./types.d.ts" */

export const GUTTER = 230; // for the names of rows
export const AXIS = 46; // for the times, and the marks of findings below them
export const MARKS = 12; // of these, for the marks
export const NEAR = 2; // how far the pointer may be from what is small

const MIN_MARK = 5; // of a finding, in width
const MARK_GAP = 1; // before the next mark

/**
 * Where a time stands in a view that fills a plot of this width, and what time stands there.
 * @param {number} time
 * @param {View} view
 * @param {number} plotWidth
 */
export const xOf = (time, view, plotWidth) =>
  GUTTER + ((time - view.start) / view.span) * plotWidth;
/**
 * @param {number} x
 * @param {View} view
 * @param {number} plotWidth
 */
export const timeAt = (x, view, plotWidth) =>
  view.start + ((x - GUTTER) / plotWidth) * view.span;

/**
 * The row at a height, by the `top` and `height` of each.
 * @template {{ top: number, height: number }} Placed
 * @param {Placed[]} rows
 * @param {number} y
 */
export const rowAt = (rows, y) => rows.find((row) => y >= row.top && y < row.top + row.height);

/**
 * Left end and width of a finding's mark on the axis. x: where a time stands.
 * @param {Interval} mark
 * @param {(time: number) => number} x
 */
export function markSpan(mark, x) {
  const left = x(mark.start);
  return { left, width: Math.max(x(mark.end) - left - MARK_GAP, MIN_MARK) };
}

/**
 * The mark at a place on the axis, or null.
 * @param {Mark[]} marks
 * @param {(time: number) => number} x
 * @param {number} pointerX
 * @param {number} pointerY
 */
export function markAt(marks, x, pointerX, pointerY) {
  if (pointerY < AXIS - MARKS || pointerY >= AXIS) return null;
  const marked = marks.find((mark) => {
    const left = x(mark.start);
    const width = Math.max(x(mark.end) - left, MIN_MARK);
    return pointerX >= left - NEAR && pointerX <= left + width + NEAR;
  });
  return marked ?? null;
}
