// @ts-check
// Actions of the buttons around the canvas.
import { showCard } from "../navigation.js";
import { follow, goToNamesake, showCollective, showHidden } from "./commands.js";
/** @import { Timeline } from "./timeline.js" */
/** @import { Actions } from "./types.d.ts" */

/**
 * @param {Timeline} timeline
 * @returns {Actions}
 */
export const actionsOf = (timeline) => ({
  color: (kind) => timeline.colors[kind] ?? "",
  search: (direction) => timeline.search.go(direction),
  searchFor: (label) => timeline.search.goTo(label),
  list: (order) => timeline.search.list(order),
  choose: (id) => timeline.search.choose(id),
  save: () => timeline.search.save(),
  follow: (event) => follow(timeline, event),
  evidence: (rank, evidence) => timeline.showEvidence(rank, evidence),
  card: (finding) => showCard(finding),
  zoom: (factor) => timeline.zoom(factor),
  fit: () => timeline.fit(),
  home: () => timeline.home(),
  back: () => timeline.back(),
  area: () => timeline.areas.statistics(),
  events: () => timeline.areas.list(),
  collective: () => showCollective(timeline),
  namesake: () => goToNamesake(timeline, "next"),
  path: () => timeline.path.toggle(),
  part: (part) => timeline.path.choose(part),
  select: (id) => timeline.select(id, { go: true }),
  frame: ({ start, end }) => timeline.frame(start, end, 1),
  showHidden: () => showHidden(timeline),
});
