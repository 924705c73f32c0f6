// @ts-check
// Draws over the rows: evidence, the selection with its links, and the pointer.
import { AXIS, FLAGS, GUTTER, NEAR_MARK, polygon } from "./geometry.js";
import { duration, fromZero, seconds } from "./time.js";

/** @import { TimelinePainter } from "./painter.js" */
/** @import { Band, BriefEvent, Clocks, Draw, Interval, Row } from "./types.d.ts" */

const MIN_WIDTH = 2; // of what is marked

/**
 * @param {TimelinePainter} painter
 * @param {Band[]} bands
 */
export function drawBands(painter, bands) {
  const { context, theme } = painter;
  for (const { start, end, top, bottom, chosen } of bands) {
    const left = painter.x(start);
    const width = Math.max(painter.x(end) - left, MIN_WIDTH);
    context.globalAlpha = chosen ? 0.22 : 0.1;
    context.fillStyle = theme.highlight;
    context.fillRect(left, top, width, bottom - top);
    context.globalAlpha = chosen ? 1 : 0.5;
    context.fillRect(left - 1, top, 1.5, bottom - top);
    context.fillRect(left + width - 0.5, top, 1.5, bottom - top);
    context.globalAlpha = 1;
  }
}

/** @param {BriefEvent} event */
const intervalOf = ({ row, begin, length }) => ({ row, start: begin, end: begin + length });

/** @type {Draw} */
export function drawOutlines(painter, { hover, selected, rowOf }) {
  const { context, theme } = painter;
  /**
   * @param {Interval & { row: string }} interval
   * @param {string} color
   * @param {number} lineWidth
   */
  const outline = ({ row: key, start, end }, color, lineWidth) => {
    const row = rowOf(key);
    if (!row) return;
    const left = painter.x(start);
    const right = Math.max(painter.x(end), left + MIN_WIDTH);
    const around = end > start ? 1 : NEAR_MARK;
    context.strokeStyle = color;
    context.lineWidth = lineWidth;
    context.strokeRect(left - around, row.top, right - left + 2 * around, row.height);
  };
  if (hover) outline(hover, theme["text-2"], 1);
  if (!selected) return;
  for (const event of selected.links) outline(intervalOf(event), theme.text, 1.5);
  outline(intervalOf(selected), theme.text, 2.5);
}

/**
 * Draw arrows from the call that launches to the operation that is launched, and from what a stream
 * waited for to what it ran then. Where one of them is out of view, say how far.
 * @type {Draw}
 */
export function drawLinks(painter, { selected, together, rowOf }) {
  if (!selected || together) return;
  const isOutside = (/** @type {number} */ x) => x < GUTTER || x > painter.width;
  for (const other of selected.links) {
    const isSource = other.relation === "launched by" || other.relation === "waited for";
    const isLaunch = other.relation.startsWith("launched");
    /** @type {[BriefEvent, BriefEvent]} */
    const [call, operation] = isSource ? [other, selected] : [selected, other];
    const leaves = call.begin + (isLaunch ? 0 : call.length);
    const from = rowOf(call.row);
    const to = rowOf(operation.row);
    if (!from || !to) continue;
    const [x1, x2] = [painter.x(leaves), painter.x(operation.begin)];
    const away = duration(Math.abs(operation.begin - leaves));
    if (isOutside(x1) && isOutside(x2)) continue;
    if (isOutside(x1)) drawHint(painter, `${isLaunch ? "launched" : "ended"} ${away} earlier`, x1, from);
    else if (isOutside(x2)) drawHint(painter, `starts ${away} later`, x2, to);
    else if (from.top <= to.top) drawArrow(painter, x1, from.top + from.height, x2, to.top);
    else drawArrow(painter, x1, from.top, x2, to.top + to.height);
  }
}

/**
 * Write at the edge of the view what lies beyond it in a row.
 * @param {TimelinePainter} painter
 * @param {string} text
 * @param {number} x
 * @param {Row} row
 */
function drawHint(painter, text, x, row) {
  const isLeft = x < GUTTER;
  const width = painter.context.measureText(text).width + 22;
  const middle = isLeft ? GUTTER + width / 2 : painter.width - width / 2;
  drawTag(painter, isLeft ? `← ${text}` : `${text} →`, middle, row.top + row.height / 2);
}

/**
 * @param {TimelinePainter} painter
 * @param {number} x1
 * @param {number} y1
 * @param {number} x2
 * @param {number} y2
 * @param {string} [color]
 */
function drawArrow({ context, theme }, x1, y1, x2, y2, color = theme.text) {
  const way = y2 < y1 ? -1 : 1; // downward
  const bend = Math.max(Math.abs(y2 - y1) / 2, 18) * way;
  for (const [style, lineWidth] of /** @type {[string, number][]} */ ([[theme.surface, 5], [color, 1.8]])) {
    context.strokeStyle = style;
    context.lineWidth = lineWidth;
    context.beginPath();
    context.moveTo(x1, y1);
    context.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2 - 5 * way);
    context.stroke();
  }
  context.fillStyle = color;
  polygon(context, [[x2, y2], [x2 - 4.5, y2 - 8 * way], [x2 + 4.5, y2 - 8 * way]]);
  context.fill();
}

/**
 * Draw how far the pointer's time may be off on each rank, where that can be seen.
 * @param {TimelinePainter} painter
 * @param {number} x
 * @param {Row[]} rows
 * @param {Clocks} clocks
 */
function drawUncertainty(painter, x, rows, clocks) {
  const { context } = painter;
  context.globalAlpha = 0.18;
  for (const { number, type, top, height } of rows) {
    const unsure = painter.lengthOf(clocks.uncertainty[number] ?? 0);
    if (unsure < 1 || type === "panel" || top < AXIS) continue;
    const left = Math.max(x - unsure, GUTTER);
    context.fillRect(left, top, x + unsure - left, height);
  }
  context.globalAlpha = 1;
}

/**
 * Draw the range that is being chosen to zoom to, else the pointer's time.
 * @type {Draw}
 */
export function drawPointer(painter, { view, pointerX, chosen, rows, clocks }) {
  const { context, theme, height, plotWidth } = painter;
  if (pointerX === null || !view) return;
  if (chosen) {
    const [left, right] = [Math.min(chosen.from, chosen.to), Math.max(chosen.from, chosen.to)];
    context.globalAlpha = 0.18;
    context.fillStyle = theme.accent;
    const top = chosen.top ?? AXIS;
    context.fillRect(left, top, right - left, (chosen.bottom ?? height) - top);
    context.globalAlpha = 1;
    const length = ((right - left) / plotWidth) * view.span;
    drawTag(painter, duration(length), (left + right) / 2, AXIS + 12);
    return;
  }
  context.fillStyle = theme.accent;
  drawUncertainty(painter, pointerX, rows, clocks);
  context.globalAlpha = 0.6;
  context.fillRect(Math.round(pointerX), AXIS - FLAGS, 1, height);
  context.globalAlpha = 1;
  const time = painter.timeAt(pointerX);
  drawTag(painter, painter.isFromZero ? fromZero(time) : seconds(time), pointerX, 18);
}

/**
 * @param {TimelinePainter} painter
 * @param {string} text
 * @param {number} x
 * @param {number} y
 */
function drawTag({ context, theme, width: whole }, text, x, y) {
  const width = context.measureText(text).width + 12;
  const left = Math.min(Math.max(x - width / 2, GUTTER), whole - width);
  context.fillStyle = theme.accent;
  context.fillRect(left, y - 9, width, 18);
  context.fillStyle = theme.surface;
  context.fillText(text, left + 6, y + 0.5);
}

/** @type {Draw} */
export function drawArea(painter, { area, rowOf }) {
  if (!area) return;
  const { context, theme } = painter;
  const left = painter.x(area.start);
  const width = painter.x(area.end) - left;
  context.fillStyle = theme.accent;
  for (const key of area.rows) {
    const row = rowOf(key);
    if (!row?.track) continue;
    context.globalAlpha = 0.14;
    context.fillRect(left, row.top, width, row.height);
  }
  context.globalAlpha = 0.9;
  for (const edge of [left, left + width]) context.fillRect(edge - 0.75, AXIS, 1.5, painter.height);
  context.globalAlpha = 1;
}

/**
 * Draw a collective on all of its ranks: how long each waited, and arrows from the last to come.
 * @type {Draw}
 */
export function drawTogether(painter, { together, rowOf, clocks }) {
  if (!together) return;
  const { context, theme } = painter;
  const last = together.members.find(({ isLast }) => isLast);
  const from = last?.row ? rowOf(last.row) : undefined;
  for (const member of together.members) {
    const row = member.row ? rowOf(member.row) : undefined;
    if (!row) continue;
    const [left, right] = [painter.x(member.begin), painter.x(member.begin + member.length)];
    context.strokeStyle = member.isLast ? theme.high : theme.text;
    context.lineWidth = member.isLast ? 3 : 1.5;
    context.strokeRect(left - 1, row.top, right - left + 2, row.height);
    if (!last || !from || member === last) continue;
    // Arrival of the last rank, as the member's clock has it, and how exactly that is known.
    const arrival = painter.x(member.begin + Number(member.wait ?? 0));
    if (arrival > left) { // until the last one comes
      context.globalAlpha = 0.55;
      context.fillStyle = theme.surface;
      context.fillRect(left, row.top + 1, Math.min(arrival, right) - left, row.height - 2);
      context.globalAlpha = 1;
    }
    const unsure = painter.lengthOf(clocks.uncertainty[member.rank] ?? 0);
    context.fillStyle = theme.high;
    context.fillRect(arrival - unsure, row.top + row.height / 2 - 1, 2 * unsure, 2);
    const isBelow = row.top > from.top;
    drawArrow(painter, painter.x(last.begin), isBelow ? from.top + from.height : from.top,
      arrival, isBelow ? row.top : row.top + row.height, theme.high);
  }
}
