// @ts-check
// The marks of lanes: drawing of bars and points, and the character of each in the legend.

/** @import { LaneMark } from "./types.d.ts" */

/**
 * Place and colours of a mark.
 * @typedef {object} Spot
 * @property {number} x of its value
 * @property {number} y the middle of its row
 * @property {number} zero where bars begin
 * @property {number} size of the row
 * @property {string} color
 * @property {string} paper behind it
 */

/** @typedef {{ glyph: string, draw: (context: CanvasRenderingContext2D, spot: Spot) => void }} Mark */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Spot} spot
 */
function circle(context, { x, y }) {
  context.beginPath();
  context.arc(x, y, 5, 0, 2 * Math.PI);
}

/** @type {Record<LaneMark, Mark>} */
const MARKS = {
  bar: {
    glyph: "■",
    draw(context, { x, y, zero, size }) {
      context.fillRect(Math.min(x, zero), y - 0.36 * size, Math.abs(x - zero), 0.72 * size);
    },
  },
  dot: {
    glyph: "●",
    draw(context, spot) {
      circle(context, spot);
      context.globalAlpha = 0.75; // points of many ranks overlap
      context.fill();
      context.globalAlpha = 1;
    },
  },
  ring: {
    glyph: "○",
    draw(context, spot) {
      circle(context, spot);
      context.fillStyle = spot.paper;
      context.fill();
      context.stroke();
    },
  },
  tick: {
    glyph: "┃",
    draw(context, { x, y, size }) {
      context.fillRect(x - 1.5, y - 0.36 * size, 3, 0.72 * size);
    },
  },
  diamond: {
    glyph: "◇",
    draw(context, { x, y, paper }) {
      context.beginPath();
      context.moveTo(x - 6, y);
      context.lineTo(x, y - 6);
      context.lineTo(x + 6, y);
      context.lineTo(x, y + 6);
      context.closePath();
      context.fillStyle = paper;
      context.fill();
      context.stroke();
    },
  },
};

/** @param {LaneMark} name */
export const glyphOf = (name) => MARKS[name].glyph;

/**
 * Draw a mark.
 * @param {CanvasRenderingContext2D} context
 * @param {LaneMark} name
 * @param {Spot} spot
 */
export function drawMark(context, name, spot) {
  context.fillStyle = spot.color;
  context.strokeStyle = spot.color;
  context.lineWidth = 2;
  MARKS[name].draw(context, spot);
}
