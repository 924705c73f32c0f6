// @ts-check
// Rows of cells on a canvas: the common part of heat maps of steps and matrices of ranks.
import { make } from "../elements.js";
import { CanvasChart } from "./canvas.js";
import { FONT, themeColor } from "./frame.js";

/** @typedef {{ row: number, column: number }} Cell */

const MIN_LABEL = 13; // between names of rows
const GAP_BELOW = 120; // width in pixels from which columns have gaps
const FAINTEST = 0.06; // the colour of the least value

/** @param {number} share from the least value, 0, to the greatest, 1 */
export const opacity = (share) => FAINTEST + (1 - FAINTEST) * share;

/**
 * The width of the widest of some texts, before there is a chart to draw them on.
 * @param {...string} texts
 */
export function widest(...texts) {
  const context = /** @type {CanvasRenderingContext2D} */ (make("canvas").getContext("2d"));
  context.font = FONT;
  return texts.reduce((most, text) => Math.max(most, context.measureText(text).width), 0);
}

/** @extends {CanvasChart<Cell>} */
export class CellsChart extends CanvasChart {
  /**
   * @param {HTMLElement} root
   * @param {string} label
   * @param {{ rows: { title: string }[], columns: number, rowHeight: number, left: number,
   *   right: number, top: number, foot: number }} grid the sizes of the grid and its margins, in pixels
   */
  constructor(root, label, grid) {
    super(root, label);
    this.grid = grid;
  }

  get height() {
    return this.grid.top + this.plotHeight + this.grid.foot;
  }

  get plotHeight() {
    return this.grid.rowHeight * this.grid.rows.length;
  }

  get plotWidth() {
    return Math.max(this.width - this.grid.left - this.grid.right, 50);
  }

  /**
   * @param {number} column
   * @returns {[number, number]}
   */
  columnSpan(column) {
    const width = this.plotWidth / this.grid.columns;
    return [this.grid.left + column * width, this.grid.left + (column + 1) * width];
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {string} color
   * @param {number} row
   * @param {(number | null)[]} shares of each column, 0 to 1, null where nothing is drawn
   */
  drawCells(context, color, row, shares) {
    const { top, rowHeight, columns } = this.grid;
    const gap = columns < GAP_BELOW ? 1 : 0;
    context.fillStyle = color;
    shares.forEach((share, column) => {
      if (share === null) return;
      const [left, right] = this.columnSpan(column);
      context.globalAlpha = opacity(share);
      context.fillRect(left, top + row * rowHeight, right - left - gap, rowHeight - (rowHeight > 6 ? 1 : 0));
    });
    context.globalAlpha = 1;
  }

  /** @param {CanvasRenderingContext2D} context */
  drawNames(context) {
    const { rows, rowHeight, left, top } = this.grid;
    context.fillStyle = themeColor("text");
    context.textAlign = "right";
    const every = Math.ceil(MIN_LABEL / rowHeight);
    rows.forEach(({ title }, number) => {
      if (number % every) return;
      context.fillText(title, left - 8, top + (number + 0.5) * rowHeight, left - 10);
    });
  }

  /**
   * Write labels under columns, as many as fit, and the axis' title below them.
   * @param {CanvasRenderingContext2D} context
   * @param {string[]} texts
   * @param {string} axis
   * @param {number} room of each text
   */
  drawFoot(context, texts, axis, room) {
    const bottom = this.grid.top + this.plotHeight;
    context.fillStyle = themeColor("text-2");
    context.textAlign = "center";
    const every = Math.ceil(texts.length / Math.max(this.plotWidth / room, 1));
    for (let column = 0; column < texts.length; column += every) {
      const [left, right] = this.columnSpan(column);
      context.fillText(texts[column] ?? "", (left + right) / 2, bottom + 9);
    }
    context.fillText(axis, this.grid.left + this.plotWidth / 2, bottom + 25);
  }

  /** @param {CanvasRenderingContext2D} context */
  drawChosen(context) {
    if (!this.at) return;
    const { top, rowHeight } = this.grid;
    const [left, right] = this.columnSpan(this.at.column);
    context.strokeStyle = themeColor("text");
    context.lineWidth = 2;
    context.strokeRect(left, top + this.at.row * rowHeight, right - left, rowHeight);
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  placeAt(x, y) {
    const { left, top, columns, rows, rowHeight } = this.grid;
    const column = Math.floor(((x - left) / this.plotWidth) * columns);
    const row = Math.floor((y - top) / rowHeight);
    const isInside = column >= 0 && column < columns && row >= 0 && row < rows.length;
    return isInside ? { row, column } : null;
  }

  /**
   * @param {number} rows
   * @param {number} columns
   */
  next(rows, columns) {
    const { row, column } = this.at ?? { row: 0, column: -columns };
    return {
      row: Math.min(Math.max(row + rows, 0), this.grid.rows.length - 1),
      column: Math.min(Math.max(column + columns, 0), this.grid.columns - 1),
    };
  }

  /**
   * @param {Cell} cell
   * @returns {[number, number]}
   */
  pointOf({ row, column }) {
    return [this.columnSpan(column)[0], this.grid.top + (row + 0.5) * this.grid.rowHeight];
  }
}
