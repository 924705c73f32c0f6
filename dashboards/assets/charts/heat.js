// @ts-check
// A heat map on a canvas: a row for each rank, a column for each step, dark where it took longest.
import { Note, follow, make, text, themeColor } from "./frame.js";
import { listenToKeys } from "./plot.js";

/** @import { Heat, HeatRow } from "./types.d.ts" */

const LEFT = 70; // for the names of rows
const RIGHT = 74; // for the scale of colours
const FOOT = 34; // for the steps and the axis' title
const [MIN_ROW, MAX_ROW] = [4, 22]; // height of a row
const HEIGHT = 480; // of many rows together
const MIN_PLOT = 44; // in which the scale of colours can be read
const MIN_LABEL = 13; // between names of rows
const TICK = 80; // between steps that are named
const GAP_BELOW = 120; // columns, of which one can see gaps
const FONT = "11px system-ui, 'Segoe UI', 'Liberation Sans', sans-serif";

/**
 * How strong the colour of a value is, 0 to 1; what is outside of the scale has its ends.
 * @param {number} value
 * @param {{ low: number, high: number }} scale
 */
export const strength = (value, { low, high }) =>
  Math.min(Math.max((value - low) / (high - low), 0), 1);

/**
 * What stands at the ends of the scale: whether there are values beyond them, too.
 * @param {Heat} drawn
 * @returns {[string, string]} of its upper end and its lower end
 */
export function scaleEnds({ rows, low, high }) {
  const has = (/** @type {(value: number) => boolean} */ isBeyond) =>
    rows.some(({ values }) => values.some((value) => value !== null && isBeyond(value)));
  const [upper, lower] = [has((value) => value > high), has((value) => value < low)];
  return [`${upper ? "≥ " : ""}${text(high)}`, `${lower ? "≤ " : ""}${text(low)}`];
}

/**
 * What is said of a cell.
 * @param {Heat} drawn
 * @param {number} row
 * @param {number} column
 */
export function cellLines({ rows, labels, unit }, row, column) {
  const value = rows[row]?.values[column];
  const said = value === null || value === undefined ? "no step" : `${text(value)} ${unit}`;
  return [`${rows[row]?.title}, ${labels[column]}`, said];
}

export class HeatChart {
  /**
   * @param {HTMLElement} root
   * @param {Heat} drawn
   * @param {string} label
   */
  constructor(root, drawn, label) {
    this.root = root;
    this.drawn = drawn;
    /** @type {{ row: number, column: number } | null} */
    this.at = null;
    this.canvas = make("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", `${label}; arrow keys move through it, Enter shows a step`);
    root.replaceChildren(this.canvas);
    this.note = new Note(root);
    const count = drawn.rows.length;
    this.rowHeight = Math.min(Math.max(HEIGHT / count, MIN_ROW), MAX_ROW);
    this.rowHeight = Math.max(this.rowHeight, MIN_PLOT / count);
    this.plotHeight = this.rowHeight * count;
    this.resizer = new ResizeObserver(() => this.redraw());
    this.resizer.observe(root);
    this.canvas.addEventListener("mousemove", (event) => this.#onMove(event));
    this.canvas.addEventListener("mouseleave", () => this.note.hide());
    this.canvas.addEventListener("click", (event) => this.#go(this.#cellAt(event)));
    listenToKeys(this.canvas, (event) => this.#onKey(event));
    this.redraw();
  }

  get plotWidth() {
    return Math.max(this.root.clientWidth - LEFT - RIGHT, 50);
  }

  redraw() {
    const { canvas, plotHeight, drawn } = this;
    const [width, height] = [this.plotWidth + LEFT + RIGHT, plotHeight + FOOT];
    canvas.width = Math.round(width * devicePixelRatio);
    canvas.height = Math.round(height * devicePixelRatio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.scale(devicePixelRatio, devicePixelRatio);
    context.font = FONT;
    context.textBaseline = "middle";
    drawn.rows.forEach((row, number) => this.#drawRow(context, row, number));
    this.#drawNames(context);
    this.#drawSteps(context);
    this.#drawScale(context);
    if (!this.at) return;
    const [left, right] = this.#columnSpan(this.at.column);
    context.strokeStyle = themeColor("text");
    context.lineWidth = 2;
    context.strokeRect(left, this.at.row * this.rowHeight, right - left, this.rowHeight);
  }

  /**
   * @param {number} column
   * @returns {[number, number]}
   */
  #columnSpan(column) {
    const width = this.plotWidth / this.drawn.x.length;
    return [LEFT + column * width, LEFT + (column + 1) * width];
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {HeatRow} row
   * @param {number} number
   */
  #drawRow(context, { values }, number) {
    const { color, x } = this.drawn;
    const gap = x.length < GAP_BELOW ? 1 : 0;
    const top = number * this.rowHeight;
    context.fillStyle = color;
    values.forEach((value, column) => {
      if (value === null) return;
      const [left, right] = this.#columnSpan(column);
      context.globalAlpha = 0.06 + 0.94 * strength(value, this.drawn);
      context.fillRect(left, top, right - left - gap, this.rowHeight - (this.rowHeight > 6 ? 1 : 0));
    });
    context.globalAlpha = 1;
  }

  /** @param {CanvasRenderingContext2D} context */
  #drawNames(context) {
    context.fillStyle = themeColor("text");
    context.textAlign = "right";
    const every = Math.ceil(MIN_LABEL / this.rowHeight);
    this.drawn.rows.forEach(({ title }, number) => {
      if (number % every) return;
      context.fillText(title, LEFT - 8, (number + 0.5) * this.rowHeight, LEFT - 10);
    });
  }

  /** @param {CanvasRenderingContext2D} context */
  #drawSteps(context) {
    const { x, axis } = this.drawn;
    context.fillStyle = themeColor("text-2");
    context.textAlign = "center";
    const every = Math.ceil(x.length / Math.max(this.plotWidth / TICK, 1));
    for (let column = 0; column < x.length; column += every) {
      const [left, right] = this.#columnSpan(column);
      context.fillText(String(Math.round(x[column] ?? 0)), (left + right) / 2, this.plotHeight + 9);
    }
    context.fillText(axis, LEFT + this.plotWidth / 2, this.plotHeight + 25);
  }

  /** @param {CanvasRenderingContext2D} context */
  #drawScale(context) {
    const { color, unit } = this.drawn;
    const [upper, lower] = scaleEnds(this.drawn);
    const left = LEFT + this.plotWidth + 10;
    const height = Math.min(this.plotHeight, 160);
    context.fillStyle = color;
    for (let y = 0; y < height; y += 1) {
      context.globalAlpha = 0.06 + (0.94 * (height - y)) / height;
      context.fillRect(left, y, 10, 1);
    }
    context.globalAlpha = 1;
    context.fillStyle = themeColor("text-2");
    context.textAlign = "left";
    context.fillText(upper, left + 14, 6, RIGHT - 26);
    context.fillText(lower, left + 14, height - 6, RIGHT - 26);
    context.fillText(unit, left + 14, height / 2, RIGHT - 26);
  }

  /**
   * @param {MouseEvent} event
   * @returns {{ row: number, column: number } | null}
   */
  #cellAt(event) {
    const box = this.canvas.getBoundingClientRect();
    const column = Math.floor(((event.clientX - box.left - LEFT) / this.plotWidth) * this.drawn.x.length);
    const row = Math.floor((event.clientY - box.top) / this.rowHeight);
    const isInside = column >= 0 && column < this.drawn.x.length && row >= 0 && row < this.drawn.rows.length;
    return isInside ? { row, column } : null;
  }

  /** @param {MouseEvent} event */
  #onMove(event) {
    const cell = this.#cellAt(event);
    this.canvas.style.cursor = cell ? "pointer" : "";
    if (cell) this.note.show(cellLines(this.drawn, cell.row, cell.column), event.clientX, event.clientY);
    else this.note.hide();
  }

  /** @param {{ row: number, column: number } | null} cell */
  #go(cell) {
    const row = cell && this.drawn.rows[cell.row];
    if (!row || typeof row.values[cell.column] !== "number") return;
    follow(row, cell.column, this.drawn.base);
  }

  /** @param {KeyboardEvent} event */
  #onKey({ key }) {
    const steps = /** @type {Record<string, [number, number]>} */ ({
      ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
    })[key];
    if (key === "Enter") {
      this.#go(this.at);
      return true;
    }
    if (!steps) return false;
    const { row, column } = this.at ?? { row: 0, column: -steps[1] };
    this.at = {
      row: Math.min(Math.max(row + steps[0], 0), this.drawn.rows.length - 1),
      column: Math.min(Math.max(column + steps[1], 0), this.drawn.x.length - 1),
    };
    this.redraw();
    const box = this.canvas.getBoundingClientRect();
    const lines = cellLines(this.drawn, this.at.row, this.at.column);
    const [left] = this.#columnSpan(this.at.column);
    this.note.show(lines, box.left + left, box.top + (this.at.row + 0.5) * this.rowHeight);
    this.note.say(lines);
    return true;
  }

  dispose() {
    this.resizer.disconnect();
  }
}
