// @ts-check
// Stacked bars, a row for each rank: steps, with their time by kind.
import { make, swatch } from "../elements.js";
import { MS, follow, legend, text, themeColor } from "./frame.js";
import { RowsChart } from "./rows.js";

/** @import { Box, StackRow, Stacks } from "./types.d.ts" */

const HEIGHT = 90; // of a row
const LOW = 40; // where there are many
const MANY = 4;
const HEADROOM = 1.05;
const GAP_BELOW = 100; // width in pixels from which bars have gaps
const MAX_BAR = 160; // pixels: the widest bar, for runs of few steps

const highest = (/** @type {number[]} */ values) =>
  values.reduce((most, value) => Math.max(most, value), 0);

/**
 * @param {StackRow} row
 * @param {number} index of the bar
 * @param {Pick<Stacks, "parts">} drawn
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
 * The range of the common axis: from the first place of all rows to the last, with half a bar beyond.
 * @param {{ step: number[] }[]} rows
 * @returns {[number, number]}
 */
export function wholeRange(rows) {
  const places = rows.flatMap(({ step }) => [step[0] ?? 0, step.at(-1) ?? 0]);
  const half = Math.max(...rows.map(({ step: [first = 0, second = first + 1] }) => second - first)) / 2;
  return [Math.min(...places) - half, Math.max(...places) + half];
}

/**
 * The bar nearest to a value of the axis.
 * @param {number[]} places ascending
 * @param {number} value
 */
export function nearest(places, value) {
  const after = places.findIndex((place) => place >= value);
  if (after <= 0) return after ? places.length - 1 : 0;
  return value - (places[after - 1] ?? 0) < (places[after] ?? 0) - value ? after - 1 : after;
}

/** @param {StackRow} row */
const isGrouped = ({ shortest_ns, longest_ns }) =>
  longest_ns.some((most, index) => most > (shortest_ns[index] ?? most));

/**
 * @param {CanvasRenderingContext2D} context
 * @param {StackRow} row
 * @param {Box} box
 * @param {Stacks["parts"]} parts that are shown, from the bottom
 * @param {boolean} isWhole whether these are all parts
 */
function paintRow(context, row, { x, y }, parts, isWhole) {
  const { step, longest_ns, slow } = row;
  const [first = 0, second = first + 1] = step;
  const share = step.length < GAP_BELOW ? 0.88 : 1;
  const width = Math.min((x(second) - x(first)) * share, MAX_BAR);
  const hasLongest = isWhole && isGrouped(row);
  const slowAt = new Map(slow.map(({ bar, number }) => [bar, number]));
  step.forEach((place, bar) => {
    const left = x(place) - width / 2;
    let below = 0;
    for (const { field, color } of parts) {
      const above = below + (row[field][bar] ?? 0) / MS;
      context.fillStyle = color;
      context.fillRect(left, y(above), width, y(below) - y(above));
      below = above;
    }
    if (hasLongest) {
      context.fillStyle = "#999999";
      context.fillRect(left + width / 2 - 2, y((longest_ns[bar] ?? 0) / MS) - 1, 4, 2);
    }
    const number = slowAt.get(bar);
    if (number === undefined) return;
    context.fillStyle = context.strokeStyle = themeColor("high");
    context.lineWidth = 2;
    context.textAlign = "center";
    context.strokeRect(x(place) - Math.max(width, 3) / 2, y(below), Math.max(width, 3), y(0) - y(below));
    context.fillText(number, x(place), y(below) - 8);
  });
}

/**
 * @param {HTMLElement} root
 * @param {Stacks} drawn
 * @param {string} label
 */
export function stacksChart(root, { rows, parts, axis, base }, label) {
  const without = new Set();
  const top = (highest(rows.map((row) => highest(row.longest_ns))) / MS) * HEADROOM || 1;
  /** @type {RowsChart<StackRow>} */
  const chart = new RowsChart(root, `${label}; arrow keys move through it, Enter shows a step`, rows, {
    axis, height: rows.length > MANY ? LOW : HEIGHT, range: wholeRange(rows), isWhole: true,
    counts: false, title: ({ title }) => title, unit: () => "ms", top: () => top,
    places: ({ step }) => step,
    under: ({ step }, value) => nearest(step, value),
    lines: (row, index) => barLines(row, index, { parts }),
    open: (row, index) => follow(row, index, base),
    paint: (context, row, box) =>
      paintRow(context, row, box, parts.filter(({ field }) => !without.has(field)), without.size === 0),
    choose(from, to) {
      chart.range = [from, to];
      chart.redraw();
    },
    chooseAll: () => {
      chart.range = wholeRange(rows);
      chart.redraw();
    },
  });
  /** @type {(string | Node)[]} */
  const entries = parts.map(({ name, color, field }) => {
    const button = make("button", { type: "button", "aria-pressed": "true" }, swatch(color), name);
    button.addEventListener("click", () => {
      const isShown = without.delete(field);
      if (!isShown) without.add(field);
      button.setAttribute("aria-pressed", String(isShown));
      chart.redraw();
    });
    return button;
  });
  if (rows.some(({ slow }) => slow.length)) entries.push("framed, with its number: a slow step");
  if (rows.some((row) => isGrouped(row))) entries.push("– longest of the steps in a bar");
  root.prepend(legend(entries));
  return chart;
}
