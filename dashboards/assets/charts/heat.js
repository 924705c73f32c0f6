// @ts-check
// A heat map: a row for each rank, a column for each step; the longest times are darkest.
import { duration } from "../timeline/time.js";
import { CellsChart, opacity, widest } from "./cells.js";
import { follow, themeColor } from "./frame.js";

/** @import { Cell } from "./cells.js" */
/** @import { Heat, Picture } from "./types.d.ts" */

const AROUND = { left: 70, right: 74, top: 0, foot: 34 }; // names at least, scale of colours, steps and axis
const BESIDE = 14; // a name
const [MIN_ROW, MAX_ROW] = [4, 22]; // height of a row
const HEIGHT = 480; // of many rows together
const MIN_PLOT = 44; // least width of a readable scale of colours
const TICK = 80; // between steps that are named

/**
 * Strength of the colour of a value, 0 to 1; values outside the scale have that of its ends.
 * @param {number} value
 * @param {{ low: number, high: number }} scale
 */
export const strength = (value, { low, high }) =>
  Math.min(Math.max((value - low) / (high - low), 0), 1);

/**
 * Labels at the ends of the scale, with a sign where values lie beyond them.
 * @param {Heat} drawn
 * @returns {[string, string]} of its upper end and its lower end
 */
export function scaleEnds({ rows, low, high }) {
  const has = (/** @type {(value: number) => boolean} */ isBeyond) =>
    rows.some(({ length_ns }) => length_ns.some((value) => value !== null && isBeyond(value)));
  const [upper, lower] = [has((value) => value > high), has((value) => value < low)];
  return [`${upper ? "≥ " : ""}${duration(high)}`, `${lower ? "≤ " : ""}${low ? duration(low) : 0}`];
}

/**
 * @param {Heat} drawn
 * @param {number} row
 * @param {number} column
 */
export function cellLines({ rows, labels, before, zero }, row, column) {
  const value = rows[row]?.length_ns[column];
  const said = (value === 0 && zero) || `${before}${duration(value ?? 0)}`;
  return [`${rows[row]?.title}, ${labels[column]}`, typeof value === "number" ? said : "no step"];
}

/** @param {Heat} drawn */
function around({ rows }) {
  const names = widest(...rows.map(({ title }) => title)) + BESIDE;
  return { ...AROUND, left: Math.max(AROUND.left, names) };
}

/** @implements {Picture<Cell>} */
export class HeatChart extends CellsChart {
  /**
   * @param {HTMLElement} root
   * @param {Heat} drawn
   * @param {string} label
   */
  constructor(root, drawn, label) {
    const count = drawn.rows.length;
    const rowHeight = Math.max(Math.min(Math.max(HEIGHT / count, MIN_ROW), MAX_ROW), MIN_PLOT / count);
    super(root, `${label}; arrow keys move through it, Enter shows a step`,
      { ...around(drawn), rows: drawn.rows, columns: drawn.step.length, rowHeight });
    this.drawn = drawn;
    this.redraw();
  }

  /** @param {CanvasRenderingContext2D} context */
  paint(context) {
    const { drawn } = this;
    drawn.rows.forEach(({ length_ns }, row) => this.drawCells(context, drawn.color, row,
      length_ns.map((value) => (value === null ? null : strength(value, drawn)))));
    this.drawNames(context);
    this.drawFoot(context, drawn.step.map((step) => String(Math.round(step))), drawn.axis, TICK);
    this.#drawScale(context);
    this.drawChosen(context);
  }

  /** @param {CanvasRenderingContext2D} context */
  #drawScale(context) {
    const { color } = this.drawn;
    const [upper, lower] = scaleEnds(this.drawn);
    const left = this.grid.left + this.plotWidth + 10;
    const height = Math.min(this.plotHeight, 160);
    context.fillStyle = color;
    for (let y = 0; y < height; y += 1) {
      context.globalAlpha = opacity((height - y) / height);
      context.fillRect(left, y, 10, 1);
    }
    context.globalAlpha = 1;
    context.fillStyle = themeColor("text-2");
    context.textAlign = "left";
    const room = AROUND.right - 26;
    context.fillText(upper, left + 14, 6, room);
    context.fillText(lower, left + 14, height - 6, room);
  }

  /** @param {Cell} cell */
  lines({ row, column }) {
    return cellLines(this.drawn, row, column);
  }

  /** @param {Cell} cell */
  leads({ row, column }) {
    return typeof this.drawn.rows[row]?.length_ns[column] === "number";
  }

  /** @param {Cell} cell */
  go(cell) {
    const row = this.drawn.rows[cell.row];
    if (row && this.leads(cell)) follow(row, cell.column, this.drawn.base);
  }
}
