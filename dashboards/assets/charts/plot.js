// @ts-check
// Rows of uPlot charts under one axis: the same width, one pointer, the colours of the theme.
// @ts-types="../vendor/uPlot/uPlot.d.ts"
import uPlot from "../vendor/uPlot/uPlot.esm.js";
import { Note, make } from "../elements.js";
import { FONT, arrow, listenToKeys, themeColor } from "./frame.js";

/** @import { Pieces } from "./types.d.ts" */

const FOOT = 34; // of the x axis and its title, below the last row
const LEFT = 58; // for the numbers of the y axis

/** Distances between ticks at whole numbers, for axes of steps. */
export const WHOLE = Array.from({ length: 30 }, (_, index) => ([1, 2, 5][index % 3] ?? 1) * 10 ** Math.floor(index / 3));

const textColor = () => themeColor("text-2");

/**
 * Numbers at an axis, with as many decimals as distinguish them.
 * @param {number[]} places
 * @param {number} distance between two of them
 */
export function decimalTexts(places, distance) {
  const digits = Math.max(0, -Math.floor(Math.log10(distance) + 1e-9));
  const isWhole = Math.abs(distance * 10 ** digits - Math.round(distance * 10 ** digits)) < 1e-9;
  const decimals = isWhole ? digits : digits + 1; // of 0.025
  return places.map((place) => place.toFixed(decimals).replace("-", "−"));
}

/** @type {uPlot.Axis.DynamicValues} */
const tickTexts = (_chart, places, _axis, _space, distance) => decimalTexts(places, distance);

/**
 * Options that all rows have.
 * @param {{ height: number, width: number, isLast: boolean, axis: string, unit: string,
 *   top: number, sync: string }} row top: of the y axis
 * @param {Partial<uPlot.Options>} more
 * @returns {uPlot.Options}
 */
export function rowOptions({ height, width, isLast, axis, unit, top, sync }, more) {
  const lines = { stroke: () => themeColor("line"), width: 1 };
  return /** @type {uPlot.Options} */ ({
    width,
    height: height + (isLast ? FOOT : 6),
    padding: [8, 22, isLast ? null : 4, 0],
    legend: { show: false },
    cursor: {
      y: false,
      points: { show: false },
      drag: { x: true, y: false },
      sync: { key: sync, setSeries: false },
    },
    scales: { x: { time: false }, y: { range: [0, top] } },
    axes: [
      {
        stroke: textColor, font: FONT, labelFont: FONT, labelSize: 14, size: isLast ? 20 : 0,
        show: isLast, label: axis, grid: lines, ticks: { ...lines, size: 4 }, values: tickTexts,
      },
      {
        stroke: textColor, font: FONT, labelFont: FONT, size: LEFT - 16, labelSize: 16, label: unit, gap: 3,
        // Ticks are up to twice as far apart: a low row, too, shows one besides zero.
        space: Math.min(18, height / 3), grid: lines, ticks: { ...lines, size: 3 },
      },
    ],
    ...more,
  });
}

/**
 * Rows of charts, one below the other: base of charts whose rows have pieces, such as steps.
 * @template Row
 */
export class Rows {
  /**
   * @param {HTMLElement} root
   * @param {string} label their content, for screen readers
   * @param {Row[]} drawn
   * @param {Pieces<Row>} pieces
   */
  constructor(root, label, drawn, pieces) {
    this.root = root;
    this.rows = drawn;
    this.pieces = pieces;
    root.replaceChildren();
    root.tabIndex = 0;
    root.setAttribute("role", "application");
    root.setAttribute("aria-label", label);
    /** @type {uPlot[]} */
    this.charts = [];
    this.at = { row: 0, index: -1 }; // the piece that keys have selected
    this.note = new Note(root);
    root.addEventListener("mouseleave", () => this.note.hide());
    listenToKeys(root, (event) => this.#onKey(event));
    this.resizer = new ResizeObserver(() => this.#resize());
    this.resizer.observe(root);
  }

  get width() {
    return Math.max(this.root.clientWidth, 200);
  }

  /**
   * @param {string} title
   * @param {uPlot.Options} options
   * @param {uPlot.AlignedData} data
   */
  add(title, options, data) {
    const box = make("div", { class: "plot-row" }, make("div", { class: "plot-title" }, title));
    this.note.shown.before(box);
    const chart = new uPlot(options, data, box);
    this.charts.push(chart);
    return chart;
  }

  /**
   * Say what is under the pointer. Rows share its position, but it is over one of them only.
   * @param {uPlot} chart
   * @param {Row} row
   */
  pointed(chart, row) {
    const { left = -1, top = -1, event } = chart.cursor;
    if (left < 0 || top < 0 || !(event?.target instanceof Node) || !chart.over.contains(event.target)) return;
    const index = this.pieces.under(chart, row);
    if (typeof index === "number") this.note.show(this.pieces.lines(row, index), event.clientX, event.clientY);
  }

  /** @param {KeyboardEvent} event */
  #onKey({ key, target }) {
    if (target !== this.root) return false; // a button of the legend
    const steps = arrow(key);
    if (!steps && key !== "Enter") return false;
    const [down, right] = steps ?? [0, 0];
    this.at.row = Math.min(Math.max(this.at.row + down, 0), this.rows.length - 1);
    const row = /** @type {Row} */ (this.rows[this.at.row]);
    if (!steps) {
      if (this.at.index >= 0) this.pieces.open?.(row, this.at.index);
      return true;
    }
    const places = this.pieces.places(row);
    this.at.index = Math.min(Math.max(this.at.index + right, 0), places.length - 1);
    const chart = /** @type {uPlot} */ (this.charts[this.at.row]);
    const left = chart.valToPos(places[this.at.index] ?? 0, "x");
    const box = chart.over.getBoundingClientRect();
    chart.setCursor({ left, top: box.height / 2 });
    const lines = this.pieces.lines(row, this.at.index);
    this.note.show(lines, box.left + left, box.top + box.height / 2);
    this.note.say(lines.join(", "));
    return true;
  }

  #resize() {
    for (const chart of this.charts) {
      if (chart.width !== this.width) chart.setSize({ width: this.width, height: chart.height });
    }
  }

  redraw() {
    for (const chart of this.charts) chart.redraw(true, true);
  }

  dispose() {
    this.resizer.disconnect();
    for (const chart of this.charts) chart.destroy();
  }
}
