// @ts-check
// Rows over one time axis: a drag chooses a range for all pages, a double click all of the time.
// @ts-types="../vendor/uPlot/uPlot.d.ts"
import uPlot from "../vendor/uPlot/uPlot.esm.js";
import { withTime } from "../address.js";
import { go } from "../navigation.js";
import { legend } from "./frame.js";
import { Rows, rowOptions } from "./plot.js";

/** @import { RowKind, TimeRow } from "./types.d.ts" */

const HEADROOM = 1.12;
const MANY = 4; // rows, which are low
const MIN_NS = 10; // shortest range to zoom to
export const LIMIT = "#999999"; // its colour, light and dark

/**
 * Values of pieces of time; the last one holds until its end.
 * @param {(number | null)[]} values
 */
export const held = (values) => [...values, values.at(-1) ?? null];

/** @param {string} color of lines that hold a value until the next one */
export const stepped = (color) => {
  const paths = uPlot.paths.stepped?.({ align: 1 });
  return { ...(paths ? { paths } : {}), points: { show: false }, stroke: color };
};

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
 * @extends {Rows<Row>}
 */
export class TimeRows extends Rows {
  /**
   * @param {HTMLElement} root
   * @param {{ axis: string, base: string, rows: Row[] }} drawn
   * @param {string} label
   * @param {RowKind<Row>} kind the drawing of each row, and the text of its pieces
   */
  constructor(root, drawn, label, kind) {
    super(root, `${label}; arrow keys move through it`, drawn.rows, {
      places: (row) => kind.times(row).slice(0, -1),
      under: (chart, row) => pieceAt(kind.times(row), chart.posToVal(chart.cursor.left ?? 0, "x")),
      lines: (row, index) => kind.lines(row, index),
    });
    this.drawn = drawn;
    this.kind = kind;
    root.prepend(legend(kind.legend(drawn.rows)));
    const sync = `time-${Math.random()}`;
    drawn.rows.forEach((row, number) => this.#add(row, number, sync));
    root.addEventListener("dblclick", () => go(withTime(location.href, null, null), { stay: true }));
  }

  /**
   * @param {Row} row
   * @param {number} number
   * @param {string} sync
   */
  #add(row, number, sync) {
    const { drawn, kind } = this;
    const alike = drawn.rows.filter((other) => scaleOf(other) === scaleOf(row));
    const top = Math.max(...alike.map((other) => Math.max(kind.top(other), other.limit ?? 0)));
    const options = rowOptions({
      height: drawn.rows.length > MANY ? kind.low : kind.height, width: this.width, isLast: number === drawn.rows.length - 1,
      axis: drawn.axis, unit: row.unit, top: top * HEADROOM || 1, sync,
    }, {
      ...kind.options(row),
      hooks: {
        drawAxes: [(/** @type {uPlot} */ chart) => kind.drawBehind?.(chart, row)],
        draw: [(/** @type {uPlot} */ chart) => drawLimit(chart, row)],
        setCursor: [(/** @type {uPlot} */ chart) => this.pointed(chart, row)],
        setSelect: [(/** @type {uPlot} */ chart) => this.#onSelect(chart)],
      },
    });
    // The page is redrawn for the new range, so the chart keeps its scale.
    options.cursor = { ...options.cursor, drag: { x: true, y: false, setScale: false } };
    options.scales = { ...options.scales, x: { time: false, range: sharedTime(drawn.rows) } };
    const [, left] = /** @type {[uPlot.Axis, uPlot.Axis]} */ (options.axes);
    if (kind.increments) left.incrs = kind.increments;
    const title = row.limit_text ? `${row.title} · ${row.limit_text}` : row.title;
    this.add(title, options, kind.data(row));
  }

  /** @param {uPlot} chart */
  #onSelect(chart) {
    const { left, width } = chart.select;
    const [start = 0, end = 0] = [left, left + width].map((x) => chart.posToVal(x, "x"));
    if ((end - start) * 1e9 < MIN_NS) return;
    go(withPiece(location.href, this.drawn.base, start, end), { stay: true });
  }
}

/**
 * @param {uPlot} chart
 * @param {TimeRow} row
 */
function drawLimit(chart, { limit }) {
  if (limit === null) return;
  const { ctx, bbox } = chart;
  const y = chart.valToPos(limit, "y", true);
  ctx.save();
  ctx.strokeStyle = LIMIT;
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
}
