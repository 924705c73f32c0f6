// @ts-check
// The depth of launch queues over time, a row for each rank; shaded where the host was blocked.
import { entry } from "./frame.js";
import { LIMIT, drawHeld, fillHeld } from "./time_rows.js";

/** @import { DepthRow, RowKind } from "./types.d.ts" */

const [FAINT, STRONG] = [0.08, 0.35]; // opacity of a piece that is blocked briefly, and of one that is blocked throughout
const seconds = (/** @type {DepthRow} */ { times }) => times.map((time) => time / 1e9);

/**
 * @param {DepthRow} row
 * @param {number} index of the piece
 */
export function depthLines({ title, times, least, most, limit_text, blocked }, index) {
  const [start, end] = [times[index] ?? 0, times[index + 1] ?? 0];
  const [low, high] = [least[index] ?? 0, most[index] ?? 0];
  const stall = blocked.starts.findLastIndex((begin) => begin < Math.max(end, start + 1));
  const isBlocked = stall !== -1 && (blocked.ends[stall] ?? 0) > start;
  return [
    title,
    `at ${(start / 1e9).toFixed(6)} s`,
    `${low < high ? `${low} to ${high}` : high} launches pending`,
    ...(isBlocked ? [`host blocked in a launch for ${(100 * (blocked.shares[stall] ?? 0)).toFixed(1)} % of this time`] : []),
    ...(limit_text ? [limit_text] : []),
  ];
}

/** @type {RowKind<DepthRow>} */
export const DEPTH = {
  height: 100,
  low: 50,
  counts: true,
  legend(rows) {
    const [{ color, blocked_color }] = /** @type {[DepthRow]} */ (rows);
    const isRange = rows.some(({ least, most }) => least.some((low, index) => low < (most[index] ?? low)));
    const isBlocked = rows.some(({ blocked }) => blocked.starts.length > 0);
    const hasLimit = rows.some(({ limit }) => limit !== null);
    return [
      entry("▬", color, isRange ? "launches pending, least to most" : "launches pending"),
      ...(isBlocked ? [entry("■", `${blocked_color}80`, "host blocked in a launch")] : []),
      ...(hasLimit ? [entry("╌", LIMIT, "limit")] : []),
    ];
  },
  top: ({ most }) => most.reduce((top, depth) => Math.max(top, depth), 1),
  times: seconds,
  lines: depthLines,
  paint(context, row, box) {
    const { blocked, blocked_color, color, least, most } = row;
    context.fillStyle = blocked_color;
    blocked.starts.forEach((start, index) => {
      const [left, right] = [box.x(start / 1e9), box.x((blocked.ends[index] ?? start) / 1e9)];
      context.globalAlpha = FAINT + (STRONG - FAINT) * (blocked.shares[index] ?? 0);
      context.fillRect(left, box.top, right - left, box.height);
    });
    context.globalAlpha = 1;
    context.fillStyle = `${color}40`;
    fillHeld(context, box, seconds(row), most, least);
    context.strokeStyle = color;
    context.lineWidth = 1.2;
    drawHeld(context, box, seconds(row), most);
  },
};
