// @ts-check
// Rows of uPlot charts under one axis: the same width, one pointer, the colours of the theme.
// @ts-types="../vendor/uPlot/uPlot.d.ts"
import uPlot from "../vendor/uPlot/uPlot.esm.js";
import { FONT, make, themeColor } from "./frame.js";

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
 *   top: number, sync: string, zooms: boolean }} row top: of the y axis
 * @param {Partial<uPlot.Options>} more
 * @returns {uPlot.Options}
 */
export function rowOptions({ height, width, isLast, axis, unit, top, sync, zooms }, more) {
  const lines = { stroke: () => themeColor("line"), width: 1 };
  return /** @type {uPlot.Options} */ ({
    width,
    height: height + (isLast ? FOOT : 6),
    padding: [8, 22, isLast ? null : 4, 0],
    legend: { show: false },
    cursor: {
      y: false,
      points: { show: false },
      drag: { x: zooms, y: false },
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

/** Rows of charts, one below the other. */
export class Rows {
  /**
   * @param {HTMLElement} root
   * @param {string} label their content, for screen readers
   */
  constructor(root, label) {
    this.root = root;
    root.replaceChildren();
    root.tabIndex = 0;
    root.setAttribute("role", "application");
    root.setAttribute("aria-label", label);
    /** @type {uPlot[]} */
    this.charts = [];
    this.resizer = new ResizeObserver(() => this.#resize());
    this.resizer.observe(root);
  }

  get width() {
    return Math.max(this.root.clientWidth, 200);
  }

  /**
   * Add a row below the others.
   * @param {string} title
   * @param {uPlot.Options} options
   * @param {uPlot.AlignedData} data
   */
  add(title, options, data) {
    const box = make("div", "plot-row", make("div", "plot-title", title));
    this.root.append(box);
    const chart = new uPlot(options, data, box);
    this.charts.push(chart);
    return chart;
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
