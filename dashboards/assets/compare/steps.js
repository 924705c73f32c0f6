// @ts-check
// The step of a side that is shown, by the address, and the name of a step.
import { duration } from "../timeline/time.js";

/** @import { Choice, Side, Step } from "./types.d.ts" */

/**
 * The rank and step in an address, such as `3.12`; else the side's own proposal.
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
