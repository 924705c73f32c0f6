// @ts-check
// Places on the canvas, in pixels.
/** @import { Flag, Interval, Row, View } from "./types.d.ts" */

export const GUTTER = 230; // for the names of rows
export const AXIS = 46; // for the times, and the flags of findings below them
export const FLAGS = 12; // of these, for the flags
export const NEAR = 2; // reach of the pointer around small things
export const NEAR_MARK = 6; // and from the middle of a mark

/**
 * Begin a path around these corners, which is to be filled or drawn.
 * @param {CanvasRenderingContext2D} context
 * @param {[number, number][]} corners
 */
export function polygon(context, corners) {
  context.beginPath();
  for (const [x, y] of corners) context.lineTo(x, y);
  context.closePath();
}

const MIN_FLAG = 5; // of a finding, in width
const FLAG_GAP = 1; // before the next flag

/**
 * The place of a time in a view that fills a plot of this width, and the time at a place.
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
 * @template {{ top: number, height: number }} Placed
 * @param {Placed[]} rows
 * @param {number} y
 */
export const rowAt = (rows, y) => rows.find((row) => y >= row.top && y < row.top + row.height);

/**
 * Left end and width of a finding's flag on the axis. x: where a time stands.
 * @param {Interval} flag
 * @param {(time: number) => number} x
 */
export function flagSpan(flag, x) {
  const left = x(flag.start);
  return { left, width: Math.max(x(flag.end) - left - FLAG_GAP, MIN_FLAG) };
}

/**
 * @param {Flag[]} flags
 * @param {(time: number) => number} x
 * @param {number} pointerX
 * @param {number} pointerY
 */
export function flagAt(flags, x, pointerX, pointerY) {
  if (pointerY < AXIS - FLAGS || pointerY >= AXIS) return null;
  const pointed = flags.find((flag) => {
    const left = x(flag.start);
    const width = Math.max(x(flag.end) - left, MIN_FLAG);
    return pointerX >= left - NEAR && pointerX <= left + width + NEAR;
  });
  return pointed ?? null;
}
