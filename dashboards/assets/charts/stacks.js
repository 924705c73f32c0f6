// @ts-check
// Stacked bars, a row for each rank: steps, with their time by kind.
// @ts-types="../vendor/uPlot/uPlot.d.ts"
import uPlot from "../vendor/uPlot/uPlot.esm.js";
import { make, swatch } from "../elements.js";
import { MS, follow, legend, text, themeColor } from "./frame.js";
import { Rows, WHOLE, rowOptions } from "./plot.js";

/** @import { StackRow, Stacks } from "./types.d.ts" */

const HEIGHT = 90; // of a row
const LOW = 40; // where there are many
const MANY = 4;
const HEADROOM = 1.05;
const GAP_BELOW = 100; // width in pixels from which bars have gaps
const MAX_BAR = 160; // pixels: the widest bar, for runs of few steps

/**
 * Sums from the bottom up to each part, without the parts that are left out.
 * @param {number[][]} parts
 * @param {Set<number>} without
 */
export function stacked(parts, without) {
  /** @type {number[]} */
  let below = (parts[0] ?? []).map(() => 0);
  return parts.map((part, number) => {
    if (!without.has(number)) below = below.map((sum, index) => sum + (part[index] ?? 0));
    return below;
  });
}

const highest = (/** @type {number[]} */ values) =>
  values.reduce((most, value) => Math.max(most, value), 0);

/**
 * @param {StackRow} row
 * @param {number} index of the bar
 * @param {Stacks} drawn
 */
export function barLines(row, index, { parts }) {
  const values = parts.map(({ field }) => (row[field][index] ?? 0) / MS);
  const whole = values.reduce((sum, value) => sum + value, 0);
  const [least, most] = [(row.shortest_ns[index] ?? 0) / MS, (row.longest_ns[index] ?? 0) / MS];
  const range = least < most ? [`steps of ${text(least)} to ${text(most)} ms`] : [];
  return [
    `${row.title}, ${row.labels[index]}`,
    `${text(whole)} ms`,
    ...parts.map(({ name }, number) => {
      const value = values[number] ?? 0;
      return `${name}: ${text(value)} ms (${((100 * value) / (whole || 1)).toFixed(1)} %)`;
    }).toReversed(),
    ...range,
    ...row.slow.filter(({ bar }) => bar === index).map(({ number, why }) => `step ${number}: ${why}`),
  ];
}

/**
 * The range of the common axis: where a row is shown from its first place or to its last,
 * the first or last place of all rows, with half a bar beyond.
 * @param {number[]} places of the row, ascending
 * @param {{ step: number[] }[]} rows
 * @param {number} from
 * @param {number} to
 * @returns {[number, number]}
 */
export function axisRange(places, rows, from, to) {
  const [first = 0, second = first + 1] = places;
  const half = (second - first) / 2;
  const last = places.at(-1) ?? first;
  // uPlot invents a range for a single place.
  const [isFromFirst, isToLast] = places.length > 1 ? [from === first, to === last] : [true, true];
  const ofAll = rows.flatMap(({ step }) => [step[0] ?? first, step.at(-1) ?? last]);
  return [isFromFirst ? Math.min(...ofAll) - half : from, isToLast ? Math.max(...ofAll) + half : to];
}

/**
 * @param {uPlot} chart
 * @param {StackRow} row
 */
function markSlow({ ctx, data, bbox, valToPos }, { slow, step }) {
  const [first = 0, second = first + 1] = step;
  const ratio = window.devicePixelRatio;
  ctx.save();
  ctx.strokeStyle = ctx.fillStyle = themeColor("high");
  ctx.lineWidth = 2 * ratio;
  ctx.font = `bold ${10 * ratio}px sans-serif`;
  ctx.textAlign = "center";
  for (const { bar, number } of slow) {
    const place = step[bar] ?? first;
    const [left, middle, right] = [-0.44, 0, 0.44]
      .map((part) => valToPos(place + part * (second - first), "x", true));
    if (left === undefined || middle === undefined || right === undefined) continue;
    if (middle < bbox.left || middle > bbox.left + bbox.width) continue;
    const width = Math.max(Math.min(right - left, MAX_BAR * ratio), 3);
    const top = valToPos(data[1]?.[bar] ?? 0, "y", true);
    ctx.strokeRect(middle - width / 2, top, width, bbox.top + bbox.height - top);
    ctx.fillText(number, middle, top - 3 * ratio);
  }
  ctx.restore();
}

/** @param {StackRow} row */
const isGrouped = ({ shortest_ns, longest_ns }) =>
  longest_ns.some((most, index) => most > (shortest_ns[index] ?? most));

/** @extends {Rows<StackRow>} */
export class StacksChart extends Rows {
  /**
   * @param {HTMLElement} root
   * @param {Stacks} drawn
   * @param {string} label
   */
  constructor(root, drawn, label) {
    super(root, `${label}; arrow keys move through it, Enter shows a step`, drawn.rows, {
      places: ({ step }) => step,
      under: ({ cursor }) => cursor.idx,
      lines: (row, index) => barLines(row, index, drawn),
      open: (row, index) => follow(row, index, drawn.base),
    });
    this.drawn = drawn;
    this.without = new Set();
    this.top = (highest(drawn.rows.map((row) => highest(row.longest_ns))) / MS) * HEADROOM || 1;
    const sync = `stacks-${Math.random()}`;
    root.prepend(this.#legend());
    drawn.rows.forEach((row, number) => this.#add(row, number, sync));
  }

  #legend() {
    const { parts, rows } = this.drawn;
    /** @type {(string | Node)[]} */
    const entries = parts.map(({ name, color }, number) => {
      const button = make("button", { type: "button", "aria-pressed": "true" }, swatch(color), name);
      button.addEventListener("click", () => this.#toggle(number, button));
      return button;
    });
    if (rows.some(({ slow }) => slow.length)) entries.push("framed, with its number: a slow step");
    if (rows.some((row) => isGrouped(row))) entries.push("– longest of the steps in a bar");
    return legend(entries);
  }

  /**
   * @param {number} number
   * @param {HTMLElement} button
   */
  #toggle(number, button) {
    const isShown = this.without.delete(number);
    if (!isShown) this.without.add(number);
    button.setAttribute("aria-pressed", String(isShown));
    this.charts.forEach((chart, row) => chart.setData(this.#data(row), false));
    this.redraw();
  }

  /**
   * The columns of a row for uPlot: the highest part is drawn first, the lower ones over it.
   * @param {number} number
   * @returns {uPlot.AlignedData}
   */
  #data(number) {
    const row = /** @type {StackRow} */ (this.drawn.rows[number]);
    const hasLongest = this.without.size === 0 && isGrouped(row);
    const longest = row.longest_ns.map((ns) => (hasLongest ? ns / MS : null));
    const parts = this.drawn.parts.map(({ field }) => row[field].map((ns) => ns / MS));
    return [row.step, ...stacked(parts, this.without).toReversed(), longest];
  }

  /**
   * @param {StackRow} row
   * @param {number} number
   * @param {string} sync
   */
  #add(row, number, sync) {
    const { parts, rows, axis } = this.drawn;
    const paths = uPlot.paths.bars?.({
      size: [row.step.length < GAP_BELOW ? 0.88 : 1, MAX_BAR], gap: 0,
    });
    const options = rowOptions({
      height: rows.length > MANY ? LOW : HEIGHT, width: this.width, isLast: number === rows.length - 1, axis, unit: "ms",
      top: this.top, sync,
    }, {
      series: [
        {},
        ...parts.toReversed().map(({ color }) => ({
          fill: color, width: 0, ...(paths ? { paths } : {}), points: { show: false },
        })),
        { paths: () => null, points: { show: true, size: 3, width: 1, stroke: "#999999" } },
      ],
      hooks: {
        setCursor: [(/** @type {uPlot} */ chart) => this.pointed(chart, row)],
        draw: [(/** @type {uPlot} */ chart) => markSlow(chart, row)],
      },
    });
    const [bottom] = /** @type {[uPlot.Axis]} */ (options.axes);
    bottom.incrs = WHOLE; // no fractions of steps
    bottom.grid = { show: false };
    // Half a bar stands before the first step and after the last one.
    options.scales = {
      ...options.scales,
      x: {
        time: false,
        range: (_chart, from, to) => axisRange(row.step, rows, from, to),
      },
    };
    const chart = this.add(row.title, options, this.#data(number));
    chart.over.style.cursor = "pointer";
    let downAt = 0;
    chart.over.addEventListener("mousedown", (event) => { downAt = event.clientX; });
    chart.over.addEventListener("click", (event) => {
      const index = chart.cursor.idx;
      if (Math.abs(event.clientX - downAt) > 4 || typeof index !== "number") return;
      follow(row, index, this.drawn.base);
    });
  }
}
