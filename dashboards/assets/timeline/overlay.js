// Draws what lies over the rows: evidence, what is selected and linked to it, and the pointer.
import { AXIS, GUTTER, MARKS } from "./geometry.js";
import { duration, seconds } from "./time.js";

const MIN_WIDTH = 2; // of what is marked

// Draw the evidence of the finding that is shown: across the rows of its rank.
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

const intervalOf = ({ row, begin, length }) => ({ row, start: begin, end: begin + length });

// Draw frames around what the pointer is on, what is selected, and what that is linked to.
export function drawOutlines(painter, { hover, selected, rowOf }) {
  const { context, theme } = painter;
  const outline = ({ row: key, start, end }, color, lineWidth) => {
    const row = rowOf(key);
    if (!row) return;
    const left = painter.x(start);
    const right = Math.max(painter.x(end), left + MIN_WIDTH);
    context.strokeStyle = color;
    context.lineWidth = lineWidth;
    context.strokeRect(left - 1, row.top, right - left + 2, row.height);
  };
  if (hover) outline(hover, theme["text-2"], 1);
  if (!selected) return;
  for (const event of selected.links) outline(intervalOf(event), theme.text, 1.5);
  outline(intervalOf(selected), theme.text, 2.5);
}

// Draw arrows from the call that launches to the operation that is launched. Where one of them is
// out of view, say how far.
export function drawLinks(painter, { selected, rowOf }) {
  const isOutside = (x) => x < GUTTER || x > painter.width;
  for (const other of selected?.links ?? []) {
    const [call, operation] = selected.kind === "host" ? [selected, other] : [other, selected];
    const from = rowOf(call.row);
    const to = rowOf(operation.row);
    if (!from || !to) continue;
    const [x1, x2] = [painter.x(call.begin), painter.x(operation.begin)];
    const away = duration(Math.abs(operation.begin - call.begin));
    if (isOutside(x1) && isOutside(x2)) continue;
    if (isOutside(x1)) drawHint(painter, `launched ${away} earlier`, x1, from);
    else if (isOutside(x2)) drawHint(painter, `starts ${away} later`, x2, to);
    else drawArrow(painter, x1, from.top + from.height, x2, to.top);
  }
}

// Say in a row, at the edge of the view, what is beyond it.
function drawHint(painter, text, x, row) {
  const isLeft = x < GUTTER;
  const width = painter.context.measureText(text).width + 22;
  const middle = isLeft ? GUTTER + width / 2 : painter.width - width / 2;
  drawTag(painter, isLeft ? `← ${text}` : `${text} →`, middle, row.top + row.height / 2);
}

function drawArrow({ context, theme }, x1, y1, x2, y2) {
  const bend = Math.max(Math.abs(y2 - y1) / 2, 18);
  for (const [color, lineWidth] of [[theme.surface, 5], [theme.text, 1.8]]) {
    context.strokeStyle = color;
    context.lineWidth = lineWidth;
    context.beginPath();
    context.moveTo(x1, y1);
    context.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2 - 5);
    context.stroke();
  }
  context.fillStyle = theme.text;
  context.beginPath();
  context.moveTo(x2, y2);
  context.lineTo(x2 - 4.5, y2 - 8);
  context.lineTo(x2 + 4.5, y2 - 8);
  context.fill();
}

// Draw the piece that is being chosen to zoom to, else the pointer's time.
export function drawPointer(painter, { view, pointerX, chosen }) {
  const { context, theme, height, plotWidth } = painter;
  if (pointerX === null || !view) return;
  if (chosen) {
    const [left, right] = [Math.min(chosen.from, chosen.to), Math.max(chosen.from, chosen.to)];
    context.globalAlpha = 0.18;
    context.fillStyle = theme.accent;
    context.fillRect(left, AXIS, right - left, height - AXIS);
    context.globalAlpha = 1;
    const length = ((right - left) / plotWidth) * view.span;
    drawTag(painter, duration(length), (left + right) / 2, AXIS + 12);
    return;
  }
  context.fillStyle = theme.accent;
  context.globalAlpha = 0.6;
  context.fillRect(Math.round(pointerX), AXIS - MARKS, 1, height);
  context.globalAlpha = 1;
  drawTag(painter, seconds(painter.timeAt(pointerX)), pointerX, 18);
}

function drawTag({ context, theme, width: whole }, text, x, y) {
  const width = context.measureText(text).width + 12;
  const left = Math.min(Math.max(x - width / 2, GUTTER), whole - width);
  context.fillStyle = theme.accent;
  context.fillRect(left, y - 9, width, 18);
  context.fillStyle = theme.surface;
  context.fillText(text, left + 6, y + 0.5);
}
