// @ts-check
// Rates over time against their peaks, a row for each link and direction.
import { text } from "./frame.js";
import { held, stepped } from "./time_rows.js";

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
  legend: () => ["▂ mean over time", "┄ while it was busy", "╌ peak"],
  top: ({ most }) => most.reduce((/** @type {number} */ top, rate) => Math.max(top, rate ?? 0), 0),
  options({ color }) {
    const line = stepped(color);
    return { series: [
      {},
      { ...line, fill: `${color}59`, width: 1.4 },
      { ...line, width: 1, dash: [2, 2] },
    ] };
  },
  data: (row) => [limits(row), held(row.mean), held(row.most)],
  times: limits,
  lines: pieceLines,
};
