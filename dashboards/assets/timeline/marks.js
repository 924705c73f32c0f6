// @ts-check
// Draws marks, the moments that the program named: a diamond each, with its name where there is room.
import { GUTTER, polygon } from "./geometry.js";
/** @import { TimelinePainter } from "./painter.js" */
/** @import { Row, Tile } from "./types.d.ts" */

const HALF = 6; // of a diamond, at most
const BEFORE_NAME = 4; // pixels between a diamond and its name
const MIN_NAMED = 20; // room for a name

/**
 * The marks of a tile, from left to right: `text` stands beside it.
 * @param {Tile} tile
 */
export function symbolsOf(tile) {
  const unit = tile.span / tile.columns;
  const alone = tile.begin.map((begin, index) =>
    ({ time: tile.start + begin, text: tile.names[tile.name[index]] ?? "", count: 1 }));
  const together = tile.column.map((column, index) =>
    ({ time: tile.start + (column + 0.5) * unit, text: `${tile.count[index]} marks`, count: tile.count[index] }));
  return [...alone, ...together].toSorted((one, other) => one.time - other.time);
}

/**
 * @param {TimelinePainter} painter
 * @param {Tile} tile
 * @param {Row} row
 * @param {string} color
 */
export function drawMarks(painter, tile, { top, height }, color) {
  const { context, theme } = painter;
  const half = Math.min(HALF, height / 2);
  const middle = top + height / 2;
  const symbols = symbolsOf(tile);
  context.strokeStyle = theme.text;
  context.lineWidth = 1;
  for (const [index, { time, text, count }] of symbols.entries()) {
    const x = painter.x(time);
    const next = index + 1 < symbols.length ? painter.x(symbols[index + 1].time) - half : painter.width;
    if (x > painter.width + half) break;
    if (next < GUTTER) continue;
    context.fillStyle = color;
    if (count > 1) drawDiamond(context, x + 3, middle, half);
    drawDiamond(context, x, middle, half);
    const left = Math.max(x + half + BEFORE_NAME + (count > 1 ? 3 : 0), GUTTER + BEFORE_NAME);
    const room = next - left - BEFORE_NAME;
    if (!text || room < MIN_NAMED) continue;
    context.fillStyle = theme.text;
    context.fillText(painter.fitting(text, room), left, middle + 0.5);
  }
}

/**
 * @param {CanvasRenderingContext2D} context
 * @param {number} x
 * @param {number} y
 * @param {number} half
 */
function drawDiamond(context, x, y, half) {
  polygon(context, [[x, y - half], [x + half, y], [x, y + half], [x - half, y]]);
  context.fill();
  context.stroke();
}
