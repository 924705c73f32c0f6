// @ts-check
// Draws the critical path: its own row on top, and its parts in the rows below.
import { GUTTER } from "./geometry.js";
/** @import { TimelinePainter } from "./painter.js" */
/** @import { Row, State, StepPath } from "./types.d.ts" */

const MIN_WIDTH = 0.7; // of a part
const MIN_LABELLED = 40; // width of a part that may have its name in it
const UNDERLINE = 4; // pixels
const GREY = "step"; // the kind of row that has the colour of delays
const INK = "#10151a";

/**
 * The row of the path: its parts one behind the other, in the colours of what they are.
 * @param {TimelinePainter} painter
 * @param {Row} row
 * @param {StepPath} path
 */
export function drawPathRow(painter, { top, height }, { parts }) {
  const { context, shades } = painter;
  for (const { kind, name, begin, length } of parts) {
    const left = painter.x(begin);
    const width = Math.max(painter.x(begin + length) - left, MIN_WIDTH);
    if (left + width < GUTTER || left > painter.width) continue;
    context.fillStyle = (shades[kind] ?? shades[GREY] ?? shades.host)[0];
    context.fillRect(left, top + 2, width, height - 4);
    const from = Math.max(left, GUTTER);
    const room = Math.min(left + width, painter.width) - from - 7;
    if (room < MIN_LABELLED) continue;
    context.fillStyle = INK;
    context.fillText(painter.fitting(name, room), from + 4, top + height / 2 + 0.5);
  }
}

/**
 * The part of the path that ran in rows: underlined, and joined where it goes on in another row.
 * @param {TimelinePainter} painter
 * @param {State} state
 */
export function drawPath(painter, { path, rowOf }) {
  if (!path) return;
  const { context, theme } = painter;
  /** @type {{ x: number, row: Row } | null} */
  let before = null;
  for (const part of path.parts) {
    const row = part.row === null ? undefined : rowOf(part.row);
    if (!row) continue;
    const left = painter.x(part.begin);
    const right = Math.max(painter.x(part.begin + part.length), left + 1);
    if (right >= GUTTER && left <= painter.width) {
      context.fillStyle = theme.high;
      context.fillRect(left, row.top + row.height - UNDERLINE, right - left, UNDERLINE);
    }
    if (before && before.row !== row && before.x <= painter.width && left >= GUTTER) {
      context.strokeStyle = theme.high;
      context.lineWidth = 1.2;
      context.beginPath();
      context.moveTo(before.x, before.row.top + before.row.height - UNDERLINE / 2);
      context.lineTo(left, row.top + row.height - UNDERLINE / 2);
      context.stroke();
    }
    before = { x: right, row };
  }
}
