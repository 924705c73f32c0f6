// @ts-check
// Rates over time against their peaks, a row for each link and direction.
import { text } from "./frame.js";
import { drawHeld, fillHeld } from "./time_rows.js";

/** @import { RateRow, RowKind } from "./types.d.ts" */

/**
 * Starts of a row's pieces and the end of the last one: seconds.
 * @param {RateRow} row
 */
export function limits({ start, end, mean }) {
  const whole = end - start;
  return Array.from({ length: mean.length + 1 }, (_, index) =>
    (start + (whole * index) / mean.length) / 1e9);
}

/**
 * @param {RateRow} row
 * @param {number} index of the piece
 */
export function pieceLines(row, index) {
  const at = limits(row)[index] ?? 0;
  const value = (/** @type {number | null | undefined} */ rate) =>
    (rate === null || rate === undefined ? "nothing" : `${text(rate)} ${row.unit}`);
  return [
    row.title,
    `at ${at.toFixed(6)} s`,
    `mean over time: ${value(row.mean[index])}`,
    `${row.most_name}: ${value(row.most[index])}`,
    ...(row.limit_text ? [row.limit_text] : []),
  ];
}

/** @type {RowKind<RateRow>} */
export const RATES = {
  height: 78,
  low: 44,
  counts: false,
  legend: () => ["▂ mean over time", "┄ while it was busy", "╌ peak"],
  top: ({ most }) => most.reduce((/** @type {number} */ top, rate) => Math.max(top, rate ?? 0), 0),
  times: limits,
  lines: pieceLines,
  paint(context, row, box) {
    context.fillStyle = `${row.color}59`;
    fillHeld(context, box, limits(row), row.mean);
    context.strokeStyle = row.color;
    context.lineWidth = 1.4;
    drawHeld(context, box, limits(row), row.mean);
    context.lineWidth = 1;
    context.setLineDash([2, 2]);
    drawHeld(context, box, limits(row), row.most);
  },
};
