// @ts-check
// Rates over time against their peaks, a row for each link and direction.
// @ts-types="../vendor/uPlot/uPlot.d.ts"
import uPlot from "../vendor/uPlot/uPlot.esm.js";
import { text } from "./frame.js";

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

// The last value holds until the last piece ends.
const closed = (/** @type {RateRow["mean"]} */ values) => [...values, values.at(-1) ?? null];

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
    const paths = uPlot.paths.stepped?.({ align: 1 });
    const line = { ...(paths ? { paths } : {}), stroke: color, points: { show: false } };
    return { series: [
      {},
      { ...line, fill: `${color}59`, width: 1.4 },
      { ...line, width: 1, dash: [2, 2] },
    ] };
  },
  data: (row) => [limits(row), closed(row.mean), closed(row.most)],
  times: limits,
  lines: pieceLines,
};
