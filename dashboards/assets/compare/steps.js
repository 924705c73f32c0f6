// @ts-check
// Which step of a side is shown, as the address says it, and what a step is called.
import { duration } from "../timeline/time.js";

/** @import { Choice, Side, Step } from "./types.d.ts" */

/**
 * The rank and the step that an address chooses, `3.12`; what the side proposes where it has no such.
 * @param {string | null} text
 * @param {Side} side
 * @returns {Choice}
 */
export function chosenIn(text, side) {
  const match = /^(\d+)(?:\.(\d+))?$/.exec(text ?? "");
  const rank = match ? Number(match[1]) : side.rank;
  if (!match || !side.ranks.some(({ number }) => number === rank)) return { rank: side.rank, step: side.step };
  return { rank, step: match[2] === undefined ? null : Number(match[2]) };
}

/** @param {Step} step */
export const stepLabel = ({ number, length }) =>
  `${number === null ? "the training" : `step ${number}`} · ${duration(length)}`;
