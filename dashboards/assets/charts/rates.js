// @ts-check
// Rates over time against their peaks, a row for each link and direction.
// @ts-types="../vendor/uPlot/uPlot.d.ts"
import uPlot from "../vendor/uPlot/uPlot.esm.js";
import { withTimes } from "../address.js";
import { go } from "../navigation.js";
import { Note, make, text } from "./frame.js";
import { Rows, listenToKeys, rowOptions } from "./plot.js";

/** @import { RateRow, Rates } from "./types.d.ts" */

const HEIGHT = 78; // of a row
const HEADROOM = 1.12;
const MIN_NS = 10; // of a piece of time that is zoomed to

/**
 * Where the pieces of a row begin and the last one ends: seconds.
 * @param {RateRow} row
 */
export function limits({ start, end, mean }) {
  const whole = end - start;
  return Array.from({ length: mean.length + 1 }, (_, index) =>
    (start + (whole * index) / mean.length) / 1e9);
}

/**
 * The time that all rows are drawn over, since one axis stands below them: seconds.
 * @param {{ start: number, end: number }[]} rows
 * @returns {[number, number]}
 */
export const sharedTime = (rows) => [
  Math.min(...rows.map(({ start }) => start)) / 1e9, Math.max(...rows.map(({ end }) => end)) / 1e9,
];

// The last value holds until the last piece ends.
const closed = (/** @type {RateRow["mean"]} */ values) => [...values, values.at(-1) ?? null];

/**
 * What is said of a piece.
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
    ...(row.peak_text ? [row.peak_text] : []),
  ];
}

export class RatesChart {
  /**
   * @param {HTMLElement} root
   * @param {Rates} drawn
   * @param {string} label
   */
  constructor(root, drawn, label) {
    this.drawn = drawn;
    this.rows = new Rows(root, `${label}; arrow keys move through it`);
    this.at = { row: 0, index: -1 };
    root.append(make("ul", "legend plot-legend", make("li", "", "▂ mean over time"),
      make("li", "", "┄ while it was busy"), make("li", "", "╌ peak")));
    const sync = `rates-${Math.random()}`;
    drawn.rows.forEach((row, number) => this.#add(row, number, sync));
    this.note = new Note(root);
    root.addEventListener("mouseleave", () => this.note.hide());
    // Zooming draws the page anew for that time, and puts it into the address.
    root.addEventListener("dblclick", () => go(withoutTimes(location.href), { stay: true }));
    listenToKeys(root, (event) => this.#onKey(event));
  }

  /**
   * @param {RateRow} row
   * @param {number} number
   * @param {string} sync
   */
  #add(row, number, sync) {
    const highest = row.most.reduce((/** @type {number} */ most, rate) => Math.max(most, rate ?? 0), 0);
    const top = Math.max(highest, row.peak ?? 0) * HEADROOM || 1;
    const paths = uPlot.paths.stepped?.({ align: 1 });
    const line = paths ? { paths } : {};
    const options = rowOptions({
      height: HEIGHT, width: this.rows.width, isLast: number === this.drawn.rows.length - 1,
      axis: this.drawn.axis, unit: row.unit, top, sync, zooms: true,
    }, {
      series: [
        {},
        { ...line, stroke: row.color, fill: `${row.color}59`, width: 1.4, points: { show: false } },
        { ...line, stroke: row.color, width: 1, dash: [2, 2], points: { show: false } },
      ],
      hooks: {
        setCursor: [(/** @type {uPlot} */ chart) => this.#onCursor(chart, row)],
        draw: [(/** @type {uPlot} */ chart) => drawPeak(chart, row)],
        setSelect: [(/** @type {uPlot} */ chart) => this.#onSelect(chart)],
      },
    });
    options.cursor = { ...options.cursor, drag: { x: true, y: false, setScale: false } };
    options.scales = { ...options.scales, x: { time: false, range: sharedTime(this.drawn.rows) } };
    const title = row.peak_text ? `${row.title} · ${row.peak_text}` : row.title;
    this.rows.add(title, options, [limits(row), closed(row.mean), closed(row.most)]);
  }

  /** @param {uPlot} chart */
  #onSelect(chart) {
    const { left, width } = chart.select;
    const [start, end] = [left, left + width].map((x) => chart.posToVal(x, "x") * 1e9);
    if (start === undefined || end === undefined || end - start < MIN_NS) return;
    const { pathname, search } = location;
    go(withTimes(pathname + search, this.drawn.base, start, end), { stay: true });
  }

  /**
   * @param {uPlot} chart
   * @param {RateRow} row
   */
  #onCursor(chart, row) {
    const { left = -1, top = -1, event } = chart.cursor;
    if (!event || left < 0 || top < 0) return;
    if (!(event.target instanceof Node) || !chart.over.contains(event.target)) return;
    const [from, to] = [row.start / 1e9, row.end / 1e9];
    const share = (chart.posToVal(left, "x") - from) / (to - from);
    const index = Math.min(Math.max(Math.floor(share * row.mean.length), 0), row.mean.length - 1);
    this.note.show(pieceLines(row, index), event.clientX, event.clientY);
  }

  /** @param {KeyboardEvent} event */
  #onKey({ key }) {
    const steps = /** @type {Record<string, [number, number]>} */ ({
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
    })[key];
    if (!steps) return false;
    this.at.row = Math.min(Math.max(this.at.row + steps[0], 0), this.drawn.rows.length - 1);
    const row = /** @type {RateRow} */ (this.drawn.rows[this.at.row]);
    this.at.index = Math.min(Math.max(this.at.index + steps[1], 0), row.mean.length - 1);
    const chart = /** @type {uPlot} */ (this.rows.charts[this.at.row]);
    const left = chart.valToPos(limits(row)[this.at.index] ?? 0, "x");
    const box = chart.over.getBoundingClientRect();
    chart.setCursor({ left, top: box.height / 2 });
    const lines = pieceLines(row, this.at.index);
    this.note.show(lines, box.left + left, box.top + box.height / 2);
    this.note.say(lines);
    return true;
  }

  redraw() {
    this.rows.redraw();
  }

  dispose() {
    this.rows.dispose();
  }
}

/** @param {string} href */
function withoutTimes(href) {
  const url = new URL(href);
  url.searchParams.delete("start");
  url.searchParams.delete("end");
  return url.pathname + url.search.replaceAll("%2C", ",");
}

/**
 * A dashed line at the peak of a link.
 * @param {uPlot} chart
 * @param {RateRow} row
 */
function drawPeak(chart, { peak }) {
  if (peak === null) return;
  const { ctx, bbox } = chart;
  const y = chart.valToPos(peak, "y", true);
  ctx.save();
  ctx.strokeStyle = "#999999";
  ctx.lineWidth = 1.5 * devicePixelRatio;
  ctx.setLineDash([6 * devicePixelRatio, 4 * devicePixelRatio]);
  ctx.beginPath();
  ctx.moveTo(bbox.left, y);
  ctx.lineTo(bbox.left + bbox.width, y);
  ctx.stroke();
  ctx.restore();
}
