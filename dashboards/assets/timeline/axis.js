// @ts-check
// Draws the axis of time: grid lines, their times, and the flags of findings.
import { AXIS, FLAGS, GUTTER, flagSpan, polygon } from "./geometry.js";
import { drawNoteMarks } from "./note_marks.js";
import { duration, ticks, ticksFromZero } from "./time.js";

/** @import { TimelinePainter } from "./painter.js" */
/** @import { Flag, Grid, Hits, State, View } from "./types.d.ts" */

const TICK_PIXELS = 110; // between grid lines, at least
const LABEL_PIXELS = 24; // half the width of a label

/**
 * @param {View | null} view
 * @param {number} plotWidth
 * @param {boolean} isFromZero whether the clock is 0 where a step begins
 */
export function gridOf(view, plotWidth, isFromZero) {
  if (!view) return { list: [], anchor: null };
  return (isFromZero ? ticksFromZero : ticks)(view.start, view.span, (view.span * TICK_PIXELS) / plotWidth);
}

/**
 * @param {TimelinePainter} painter
 * @param {Grid} grid
 */
export function drawGrid(painter, grid) {
  const { context, theme } = painter;
  context.strokeStyle = theme.line;
  context.lineWidth = 1;
  context.beginPath();
  for (const { at } of grid.list) {
    const x = Math.round(painter.x(at)) + 0.5;
    if (x < GUTTER) continue;
    context.moveTo(x, AXIS);
    context.lineTo(x, painter.height);
  }
  context.stroke();
}

/**
 * @param {TimelinePainter} painter
 * @param {Grid} grid
 * @param {State} state
 */
export function drawAxis(painter, grid, state) {
  const { context, theme, width } = painter;
  context.fillStyle = theme.surface;
  context.fillRect(0, 0, width, AXIS);
  context.fillStyle = theme["text-2"];
  context.fillText(state.timeLabel, 8, 13);
  context.fillStyle = theme.text;
  const shown = state.view ? `${duration(state.view.span)} in view` : "";
  context.fillText(grid.anchor === null ? shown : `${grid.anchor}   ${shown}`, 8, 28);
  context.textAlign = "center";
  for (const { at, label } of grid.list) {
    const x = painter.x(at);
    if (x < GUTTER + LABEL_PIXELS || x > width - LABEL_PIXELS) continue;
    context.fillText(label, x, 18);
    context.fillRect(Math.round(x), 27, 1, 5);
  }
  context.textAlign = "left";
  context.fillStyle = theme.sunken;
  context.fillRect(GUTTER, AXIS - FLAGS, painter.plotWidth, FLAGS);
  painter.clip(GUTTER, 0, painter.plotWidth, AXIS, () => {
    drawFlags(painter, state.flags);
    drawHits(painter, state.hits);
    drawNoteMarks(painter, state.notes);
  });
  context.fillStyle = theme["text-2"];
  if (state.flags[0]) {
    context.textAlign = "right";
    context.fillText(state.flags[0].finding === "changed kernel" ? "changed" : "findings", GUTTER - 8, AXIS - FLAGS / 2);
    context.textAlign = "left";
  }
  context.fillStyle = theme.line;
  context.fillRect(0, AXIS - 1, width, 1);
}

/**
 * @param {TimelinePainter} painter
 * @param {Hits | null} hits
 */
function drawHits(painter, hits) {
  if (!hits) return;
  const { context, theme } = painter;
  const column = hits.span / hits.count;
  context.fillStyle = theme.accent;
  const [tip, top] = [AXIS - FLAGS, AXIS - FLAGS - 6];
  for (const at of hits.columns) {
    const x = Math.round(painter.x(hits.start + (at + 0.5) * column));
    polygon(context, [[x, tip], [x - 3.5, top], [x + 3.5, top]]);
    context.fill();
  }
}

/**
 * @param {TimelinePainter} painter
 * @param {Flag[]} flags
 */
function drawFlags(painter, flags) {
  const { context, theme } = painter;
  for (const flag of flags.toReversed()) { // the costliest is first, and on top
    const { left, width } = flagSpan(flag, painter.x);
    context.fillStyle = theme[flag.severity] || theme.info;
    context.fillRect(left, AXIS - FLAGS + 2, width, FLAGS - 4);
    if (!flag.chosen) continue;
    context.strokeStyle = theme.text;
    context.lineWidth = 1.5;
    context.strokeRect(left - 1, AXIS - FLAGS + 1, width + 2, FLAGS - 2);
  }
}
