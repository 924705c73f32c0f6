// @ts-check
// Rows over one time axis: rates of links against their peaks, and depths of launch queues, shaded where the
// host was blocked. A drag chooses a range for all pages, a double click all of the time.
import { withTime } from "../address.js";
import { go } from "../navigation.js";
import { entry, legend, text } from "./frame.js";
import { RowsChart } from "./rows.js";

/** @import { Box, DepthRow, RateRow, RowKind, TimeRow, Values } from "./types.d.ts" */

const HEADROOM = 1.12;
const MANY = 4; // rows, which are low
const MIN_NS = 10; // shortest range to zoom to
const LIMIT = "#999999"; // its colour, light and dark

/**
 * Draw values of pieces of time: a line that holds each until the next one.
 * @param {CanvasRenderingContext2D} context
 * @param {Box} box
 * @param {number[]} times where pieces begin, and the last one ends: seconds
 * @param {Values} values of the pieces
 */
function drawHeld(context, { x, y }, times, values) {
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
function fillHeld(context, { x, y }, times, values, below = []) {
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
  const tops = new Map(rows.map((row) => {
    const alike = rows.filter((other) => scaleOf(other) === scaleOf(row));
    const top = Math.max(...alike.map((other) => Math.max(kind.top(other), other.limit ?? 0)));
    return [row, top * HEADROOM || 1];
  }));
  const chart = new RowsChart(root, `${label}; arrow keys move through it`, rows, {
    axis, height: rows.length > MANY ? kind.low : kind.height, range: sharedTime(rows), isWhole: false,
    counts: kind.counts, unit: ({ unit }) => unit, top: (row) => tops.get(row) ?? 1,
    title: ({ title, limit_text }) => (limit_text ? `${title} · ${limit_text}` : title),
    places: (row) => kind.times(row).slice(0, -1),
    under: (row, value) => pieceAt(kind.times(row), value),
    lines: kind.lines,
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

const [FAINT, STRONG] = [0.08, 0.35]; // opacity of a piece that is blocked briefly, and of one that is blocked throughout
const seconds = (/** @type {DepthRow} */ { times }) => times.map((time) => time / 1e9);

/**
 * @param {DepthRow} row
 * @param {number} index of the piece
 */
export function depthLines({ title, times, least, most, limit_text, blocked }, index) {
  const [start, end] = [times[index] ?? 0, times[index + 1] ?? 0];
  const [low, high] = [least[index] ?? 0, most[index] ?? 0];
  const stall = blocked.starts.findLastIndex((begin) => begin < Math.max(end, start + 1));
  const isBlocked = stall !== -1 && (blocked.ends[stall] ?? 0) > start;
  return [
    title,
    `at ${(start / 1e9).toFixed(6)} s`,
    `${low < high ? `${low} to ${high}` : high} launches pending`,
    ...(isBlocked ? [`host blocked in a launch for ${(100 * (blocked.shares[stall] ?? 0)).toFixed(1)} % of this time`] : []),
    ...(limit_text ? [limit_text] : []),
  ];
}

/** @type {RowKind<DepthRow>} */
export const DEPTH = {
  height: 100,
  low: 50,
  counts: true,
  legend(rows) {
    const [{ color, blocked_color }] = /** @type {[DepthRow]} */ (rows);
    const isRange = rows.some(({ least, most }) => least.some((low, index) => low < (most[index] ?? low)));
    const isBlocked = rows.some(({ blocked }) => blocked.starts.length > 0);
    const hasLimit = rows.some(({ limit }) => limit !== null);
    return [
      entry("▬", color, isRange ? "launches pending, least to most" : "launches pending"),
      ...(isBlocked ? [entry("■", `${blocked_color}80`, "host blocked in a launch")] : []),
      ...(hasLimit ? [entry("╌", LIMIT, "limit")] : []),
    ];
  },
  top: ({ most }) => most.reduce((top, depth) => Math.max(top, depth), 1),
  times: seconds,
  lines: depthLines,
  paint(context, row, box) {
    const { blocked, blocked_color, color, least, most } = row;
    context.fillStyle = blocked_color;
    blocked.starts.forEach((start, index) => {
      const [left, right] = [box.x(start / 1e9), box.x((blocked.ends[index] ?? start) / 1e9)];
      context.globalAlpha = FAINT + (STRONG - FAINT) * (blocked.shares[index] ?? 0);
      context.fillRect(left, box.top, right - left, box.height);
    });
    context.globalAlpha = 1;
    context.fillStyle = `${color}40`;
    fillHeld(context, box, seconds(row), most, least);
    context.strokeStyle = color;
    context.lineWidth = 1.2;
    drawHeld(context, box, seconds(row), most);
  },
};
