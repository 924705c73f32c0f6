// @ts-check
// Rows over one time axis: a drag chooses a range for all pages, a double click all of the time.
import { withTime } from "../address.js";
import { go } from "../navigation.js";
import { legend } from "./frame.js";
import { RowsChart } from "./rows.js";

/** @import { Box, RowKind, TimeRow, Values } from "./types.d.ts" */

const HEADROOM = 1.12;
const MANY = 4; // rows, which are low
const MIN_NS = 10; // shortest range to zoom to
export const LIMIT = "#999999"; // its colour, light and dark

/**
 * Draw values of pieces of time: a line that holds each until the next one.
 * @param {CanvasRenderingContext2D} context
 * @param {Box} box
 * @param {number[]} times where pieces begin, and the last one ends: seconds
 * @param {Values} values of the pieces
 */
export function drawHeld(context, { x, y }, times, values) {
  context.beginPath();
  values.forEach((value, index) => {
    if (value === null) return;
    const [left, right] = [x(times[index] ?? 0), x(times[index + 1] ?? 0)];
    if (index && typeof values[index - 1] === "number") context.lineTo(left, y(value));
    else context.moveTo(left, y(value));
    context.lineTo(right, y(value));
  });
  context.stroke();
}

/**
 * Fill pieces of time from one value to another.
 * @param {CanvasRenderingContext2D} context
 * @param {Box} box
 * @param {number[]} times
 * @param {Values} values
 * @param {number[]} [below] 0 by default
 */
export function fillHeld(context, { x, y }, times, values, below = []) {
  context.beginPath();
  values.forEach((value, index) => {
    if (value === null) return;
    const [left, right] = [x(times[index] ?? 0), x(times[index + 1] ?? 0)];
    context.rect(left, y(value), right - left, y(below[index] ?? 0) - y(value));
  });
  context.fill();
}

/**
 * The common range of all rows, in seconds: they share one axis.
 * @param {{ start: number, end: number }[]} rows
 * @returns {[number, number]}
 */
export const sharedTime = (rows) => [
  Math.min(...rows.map(({ start }) => start)) / 1e9, Math.max(...rows.map(({ end }) => end)) / 1e9,
];

/**
 * The piece at a time: the last one that begins before it.
 * @param {number[]} times where pieces begin, ascending, and the last one ends
 * @param {number} time
 */
export function pieceAt(times, time) {
  const after = times.findIndex((start) => start > time);
  const index = after === -1 ? times.length - 2 : after - 1;
  return Math.min(Math.max(index, 0), times.length - 2);
}

/**
 * @param {string} here
 * @param {string} base the nanosecond at which the axis begins
 * @param {number} start seconds
 * @param {number} end
 */
export function withPiece(here, base, start, end) {
  const [first, last] = [start, end].map((time) => BigInt(base) + BigInt(Math.round(time * 1e9)));
  return withTime(here, String(first), String(last));
}

/**
 * The kind of a row: rows of several ranks that show the same thing have one scale.
 * @param {{ title: string, unit: string }} row
 */
export const scaleOf = ({ title, unit }) => `${title.replace(/^rank \d+( · )?/, "")} ${unit}`;

/**
 * @template {TimeRow} Row
 * @param {HTMLElement} root
 * @param {{ axis: string, base: string, rows: Row[] }} drawn
 * @param {string} label
 * @param {RowKind<Row>} kind the drawing of each row, and the text of its pieces
 */
export function timeRows(root, { axis, base, rows }, label, kind) {
  const titled = rows.map((row) => ({ ...row, title: row.limit_text ? `${row.title} · ${row.limit_text}` : row.title }));
  const tops = new Map(rows.map((row, number) => {
    const alike = rows.filter((other) => scaleOf(other) === scaleOf(row));
    const top = Math.max(...alike.map((other) => Math.max(kind.top(other), other.limit ?? 0)));
    return [titled[number], top * HEADROOM || 1];
  }));
  const chart = new RowsChart(root, `${label}; arrow keys move through it`, titled, {
    axis, height: rows.length > MANY ? kind.low : kind.height, range: sharedTime(rows), isWhole: false,
    counts: kind.counts, unit: ({ unit }) => unit, top: (row) => tops.get(row) ?? 1,
    places: (row) => kind.times(row).slice(0, -1),
    under: (row, value) => pieceAt(kind.times(row), value),
    lines: (row, index) => kind.lines(/** @type {Row} */ (rows[titled.indexOf(row)]), index),
    paint(context, row, box) {
      kind.paint(context, row, box);
      drawLimit(context, row, box);
    },
    choose(start, end) { // the page is drawn anew for that time
      if ((end - start) * 1e9 >= MIN_NS) go(withPiece(location.href, base, start, end), { stay: true });
    },
    chooseAll: () => go(withTime(location.href, null, null), { stay: true }),
  });
  root.prepend(legend(kind.legend(rows)));
  return chart;
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {TimeRow} row
 * @param {Box} box
 */
function drawLimit(context, { limit }, { left, width, y }) {
  if (limit === null) return;
  context.strokeStyle = LIMIT;
  context.lineWidth = 1.5;
  context.setLineDash([6, 4]);
  context.beginPath();
  context.moveTo(left, y(limit));
  context.lineTo(left + width, y(limit));
  context.stroke();
}
