// @ts-check
// Places of the findings' evidence: flags on the axis, bands over the rows of one finding.
import { holds } from "./view.js";
/** @import { Band, Evidence, Flag, RankRows, Row, View } from "./types.d.ts" */

/**
 * @param {Set<number>} opened
 * @param {Map<number, RankRows>} ranks
 * @param {(Evidence & { rank: number }) | null} shown the one that is selected
 */
export function flagsOf(opened, ranks, shown) {
  const isChosen = (/** @type {Evidence} */ { number, evidence }) =>
    shown?.number === number && shown.evidence === evidence;
  return [...opened].flatMap((rank) =>
    (ranks.get(rank)?.evidence ?? []).map((evidence) =>
      ({ ...evidence, rank, source: evidence, chosen: isChosen(evidence) })));
}

/**
 * The evidence that an address names; of several with the same number, the one in view. A rank can have
 * the same finding of several links.
 * @param {Evidence[]} evidence of a rank
 * @param {string} finding
 * @param {number} index
 * @param {View | null} view
 */
export function namedEvidence(evidence, finding, index, view) {
  const named = evidence.filter((one) => one.finding === finding && one.evidence === index);
  return named.find((one) => view && holds(view, one)) ?? named[0];
}

/**
 * @param {Flag[]} flags
 * @param {Row[]} rows
 * @param {Evidence | null} shown
 */
export const bandsOf = (flags, rows, shown) =>
  flags.filter((flag) => flag.number === shown?.number).map((flag) => {
    const rowsOfRank = rows.filter((row) => row.number === flag.rank && !row.pinned);
    return {
      ...flag,
      top: rowsOfRank[0]?.top ?? 0,
      bottom: Math.max(...rowsOfRank.map((row) => row.top + row.height)),
    };
  });
