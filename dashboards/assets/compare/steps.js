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
  const [rank, step] = text === null ? [side.rank, side.step] : text.split(".").map(Number);
  if (!side.ranks.some(({ number }) => number === rank)) return { rank: side.rank, step: side.step };
  return { rank: rank ?? side.rank, step: step ?? null };
}

/** @param {Step} step */
export const stepLabel = ({ number, length }) =>
  `${number === null ? "the training" : `step ${number}`} · ${duration(length)}`;
