// @ts-check
// The row of all ranks: how long they took by step, and who came latest; without steps by collective.
import { GUTTER } from "./geometry.js";
import { duration } from "./time.js";
/** @import { TimelinePainter } from "./painter.js" */
/** @import { Row, Spread, SpreadReply } from "./types.d.ts" */

const MIN_WIDTH = 1;
const LINE = 2; // pixels, the median
const SPREAD = 0.4; // how opaque it is

/**
 * @param {SpreadReply[]} replies
 * @param {(time: string) => number} toOffset
 */
export const spreadsOf = (replies, toOffset) =>
  replies.map((reply) => ({ ...reply, begin: toOffset(reply.start), stop: toOffset(reply.end) }));

/**
 * The one at a time, or the next within reach.
 * @param {Spread[]} spreads
 * @param {number} time
 * @param {number} near
 */
export const spreadAt = (spreads, time, near) =>
  spreads.findLast(({ begin, stop }) => begin - near <= time && time <= stop + near);

/** @param {Spread} spread */
export function spreadLines({ name, least, median, most, rank, late }) {
  const isStep = least > 0;
  const said = isStep
    ? [`the ranks took ${duration(median)} in the median`,
      `${duration(least)} to ${duration(most)}, rank ${rank} the longest`]
    : [`half of the ranks came within ${duration(median)} of the first`,
      `rank ${rank} came ${duration(most)} after it`];
  if (late) said.push(`rank ${late.rank} came ${duration(late.length)} after the median of the others`);
  return [name, ...said];
}

/**
 * Of each step, from below: how late the latest rank came, over how long all ranks took, up to the
 * median (the line) and the slowest. One scale for all, from 0 on.
 * @param {TimelinePainter} painter
 * @param {Row} row
 * @param {Spread[]} spreads
 */
export function drawSpreads(painter, { top, height }, spreads) {
  const { context, theme } = painter;
  const tallest = Math.max(...spreads.map(({ most }) => most), 1);
  const bottom = top + height - 2;
  const scale = (/** @type {number} */ ns) => (ns / tallest) * (height - 5);
  for (const { begin, stop, least, median, most, late } of spreads) {
    const left = painter.x(begin);
    const width = Math.max(painter.x(stop) - left - 1, MIN_WIDTH);
    if (left + width < GUTTER || left > painter.width) continue;
    const fill = (/** @type {string} */ color, /** @type {number} */ from, /** @type {number} */ to) => {
      context.fillStyle = color;
      context.fillRect(left, bottom - to, width, to - from);
    };
    fill(theme.line, 0, scale(least));
    context.globalAlpha = SPREAD; // what is written on it stays readable in light and dark
    fill(theme.accent, scale(least), scale(most));
    context.globalAlpha = 1;
    fill(theme["text-2"], scale(median) - LINE / 2, scale(median) + LINE / 2);
    if (!late) continue;
    fill(theme.high, 0, Math.max(scale(late.length), LINE));
    const from = Math.max(left, GUTTER);
    const room = Math.min(left + width, painter.width) - from - 7;
    const text = [`rank ${late.rank} late by ${duration(late.length)}`, `rank ${late.rank}`]
      .find((one) => context.measureText(one).width <= room);
    context.fillStyle = theme.text;
    if (text) context.fillText(text, from + 4, bottom - height / 2 + 2);
  }
}
