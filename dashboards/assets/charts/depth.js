// @ts-check
// The depth of launch queues over time, a row for each rank; shaded where the host was blocked.
import { entry } from "./frame.js";
import { WHOLE } from "./plot.js";
import { LIMIT, held, stepped } from "./time_rows.js";

/** @import { DepthRow, RowKind } from "./types.d.ts" */

const [FAINT, STRONG] = [0.08, 0.35]; // opacity of a piece that is blocked briefly, and of one that is blocked throughout
const seconds = (/** @type {number[]} */ times) => times.map((time) => time / 1e9);

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
  increments: WHOLE,
  top: ({ most }) => most.reduce((top, depth) => Math.max(top, depth), 1),
  options({ color }) {
    const line = stepped(color);
    return {
      series: [{}, { ...line, width: 1.2 }, { ...line, width: 0 }],
      bands: [{ series: [1, 2], fill: `${color}40` }],
    };
  },
  data: ({ times, least, most }) => [seconds(times), held(most), held(least)],
  times: ({ times }) => seconds(times),
  lines: depthLines,
  drawBehind(chart, { blocked, blocked_color }) {
    const { ctx, bbox } = chart;
    ctx.save();
    ctx.fillStyle = blocked_color;
    blocked.starts.forEach((start, index) => {
      const [left, right] = [start, blocked.ends[index] ?? start]
        .map((time) => Math.min(Math.max(chart.valToPos(time / 1e9, "x", true), bbox.left), bbox.left + bbox.width));
      if (left === undefined || right === undefined || right <= left) return;
      ctx.globalAlpha = FAINT + (STRONG - FAINT) * (blocked.shares[index] ?? 0);
      ctx.fillRect(left, bbox.top, right - left, bbox.height);
    });
    ctx.restore();
  },
};
