// @ts-check
// A matrix of ranks by ranks, with the values written into the cells where they fit.
import { withRanks } from "../address.js";
import { go } from "../navigation.js";
import { CellsChart, widest } from "./cells.js";
import { themeColor } from "./frame.js";

/** @import { Cell } from "./cells.js" */
/** @import { Matrix, Picture } from "./types.d.ts" */

const [MIN_ROW, MAX_ROW] = [4, 34]; // height of a row
const HEIGHT = 820; // of many rows together
const MAX_LEFT = 260; // of the names of rows
const MIN_TEXT = 14; // least height of a row with text
const MARGIN = 8; // on both sides of a text together
const STRONGEST = 0.5; // strength of the colour from which text on it is light

/**
 * @param {Matrix} drawn
 * @param {number} row
 * @param {number} column
 */
export function pairLines({ rows, columns, between }, row, column) {
  const of_row = rows[row];
  return [
    `${of_row?.name} ${between} ${columns[column]?.name}`,
    of_row?.notes?.[column] ?? of_row?.texts[column] ?? "nothing",
    ...(of_row?.ranks ? ["a click shows the ranks of both"] : []),
  ];
}

/**
 * The ranks behind a cell: those of its row and column, in order; none where these are ranks.
 * @param {Matrix} drawn
 * @param {number} row
 * @param {number} column
 */
export const ranksOf = ({ rows, columns }, row, column) =>
  [...new Set([...(rows[row]?.ranks ?? []), ...(columns[column]?.ranks ?? [])])]
    .toSorted((one, other) => one - other);

/** @param {Matrix} drawn */
function around(drawn) {
  const names = Math.min(widest(...drawn.rows.map(({ title }) => title)) + 14, MAX_LEFT);
  const side = drawn.side ? widest(drawn.side) + 8 : 0;
  return { left: Math.max(names, side), right: 10, top: drawn.side ? 18 : 0, foot: 34 };
}

/** @implements {Picture<Cell>} */
export class MatrixChart extends CellsChart {
  /**
   * @param {HTMLElement} root
   * @param {Matrix} drawn
   * @param {string} label
   */
  constructor(root, drawn, label) {
    const rowHeight = Math.min(Math.max(HEIGHT / drawn.rows.length, MIN_ROW), MAX_ROW);
    super(root, `${label}; arrow keys move through it`,
      { ...around(drawn), rows: drawn.rows, columns: drawn.columns.length, rowHeight });
    this.drawn = drawn;
    this.redraw();
  }

  /** @param {CanvasRenderingContext2D} context */
  paint(context) {
    const { rows, columns, color, high, axis, side } = this.drawn;
    rows.forEach(({ values }, row) => this.drawCells(context, color, row,
      values.map((value) => (value === null ? null : (STRONGEST * value) / high))));
    this.#drawTexts(context);
    this.drawNames(context);
    const titles = columns.map(({ title }) => title);
    this.drawFoot(context, titles, axis, widest(...titles) + MARGIN);
    context.textAlign = "right";
    context.fillText(side, this.grid.left - 8, 8);
    this.drawChosen(context);
  }

  /** @param {CanvasRenderingContext2D} context */
  #drawTexts(context) {
    const { top, rowHeight } = this.grid;
    if (rowHeight < MIN_TEXT) return;
    context.fillStyle = themeColor("text");
    context.textAlign = "center";
    this.drawn.rows.forEach(({ texts }, row) => {
      texts.forEach((text, column) => {
        const [left, right] = this.columnSpan(column);
        if (text === null || context.measureText(text).width > right - left - 2) return;
        context.fillText(text, (left + right) / 2, top + (row + 0.5) * rowHeight);
      });
    });
  }

  /** @param {Cell} cell */
  lines({ row, column }) {
    return pairLines(this.drawn, row, column);
  }

  /** @param {Cell} cell */
  leads({ row, column }) {
    return ranksOf(this.drawn, row, column).length > 0;
  }

  /** @param {Cell} cell */
  go(cell) {
    if (this.leads(cell)) go(withRanks(location.href, ranksOf(this.drawn, cell.row, cell.column)));
  }
}
