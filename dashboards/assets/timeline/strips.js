// @ts-check
// Strips: the GPU's work of a folded rank in one row. The upper third is compute, the middle third
// communication, the lower third copies; where all are empty the GPU is idle.
import { GUTTER } from "./geometry.js";
/** @import { TimelinePainter } from "./painter.js" */
/** @import { Row, Strip, View } from "./types.d.ts" */

export const STRIP_KINDS = ["compute", "communication", "copy"];
const INSET = 3; // above and below
const GAP = 1; // between thirds

/**
 * @param {Strip | undefined} strip
 * @param {View} view
 */
export const isFreshStrip = (strip, view) =>
  strip !== undefined && strip.span === view.span && strip.start === view.start;

/**
 * The text of a strip's whole view: "compute 62 %, communication 30 %, copy 1 %".
 * @param {Strip} strip
 */
export const stripText = ({ shares }) =>
  STRIP_KINDS.filter((kind) => shares[kind]).map((kind) => {
    const values = shares[kind];
    const sum = values.reduce((total, value) => total + value, 0);
    return `${kind} ${Math.round(sum / values.length / 10)} %`;
  }).join(", ") || "idle";

/**
 * The text of folded ranks, for readers that do not see their strips.
 * @param {Row[]} folded
 * @param {Map<number, Strip>} strips by rank
 */
export const stripTexts = (folded, strips) => folded.flatMap(({ number, label }) => {
  const strip = strips.get(number);
  return strip ? [`${label}: ${stripText(strip)}`] : [];
});

/**
 * @param {TimelinePainter} painter
 * @param {Row} row
 * @param {Strip} strip
 */
export function drawStrip(painter, { top, height }, { start, span, shares }) {
  const { context } = painter;
  const third = (height - 2 * INSET) / STRIP_KINDS.length;
  painter.clip(GUTTER, top, painter.plotWidth, height, () => {
    for (const [number, kind] of STRIP_KINDS.entries()) {
      const values = shares[kind] ?? [];
      const bottom = top + INSET + (number + 1) * third - GAP;
      context.beginPath();
      for (const [column, share] of values.entries()) {
        if (share === 0) continue;
        const left = painter.x(start + (column * span) / values.length);
        const right = painter.x(start + ((column + 1) * span) / values.length);
        const filled = Math.max((share / 1000) * (third - GAP), 1);
        context.rect(left, bottom - filled, Math.max(right - left, 0.7), filled);
      }
      context.fillStyle = painter.shades[kind][0];
      context.fill();
      if (values.some(Boolean)) painter.drawn.add(kind);
    }
  });
}
