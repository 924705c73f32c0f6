// @ts-check
// Commands of keys and buttons: the next event, rows pinned and hidden, and what the panel can do.
import { holds } from "./view.js";
/** @import { Timeline } from "./timeline.js" */
/** @import { BriefEvent } from "./types.d.ts" */

const LINK_SHARE = 0.8; // of the view

/**
 * Go from the selected event to one that it is linked to, with both in view.
 * @param {Timeline} timeline
 * @param {BriefEvent} event
 */
export async function follow(timeline, event) {
  const { selected, view } = timeline;
  if (!selected || !view) return;
  const start = Math.min(selected.begin, event.begin);
  const end = Math.max(selected.begin + selected.length, event.begin + event.length);
  if (!holds(view, { start, end })) timeline.frame(start, end, LINK_SHARE);
  await timeline.select(event.id, { scroll: true });
}

/** @param {Timeline} timeline */
export function showCollective({ selected, together, panel }) {
  const isCommunication = selected?.kind === "communication" && selected.id.includes(".op.");
  if (selected && isCommunication) together.show(selected);
  else panel.explain("C shows a communication kernel of a GPU on all of its ranks: select one first");
}

/**
 * Select the next or the previous event of the row, or show the other evidence of a finding; with
 * neither, select the first event in view.
 * @param {Timeline} timeline
 * @param {"next" | "previous"} direction
 */
export async function goToNeighbour(timeline, direction) {
  const { selected, view, data, chosenEvidence } = timeline;
  if (chosenEvidence && !selected) {
    timeline.otherEvidence(direction === "next" ? 1 : -1);
    return;
  }
  if (selected) {
    const { id } = await data.answer("neighbour", { id: selected.id, direction });
    if (id) await timeline.select(id, { go: true });
    return;
  }
  const row = timeline.rows.find(({ track }) => track?.source === "op");
  if (!row?.track || !view) return;
  const { events } = await data.answer("events",
    { rows: row.track.row, start: view.start, end: view.start + view.span });
  if (events.length) await timeline.select(events[0].id, { go: true });
}

/**
 * @param {Timeline} timeline
 * @param {"next" | "previous"} direction
 */
export async function goToNamesake(timeline, direction) {
  const { selected, data, panel } = timeline;
  if (!selected) {
    panel.note.say("select a kernel first");
    return;
  }
  const { id } = await data.answer("namesake", { id: selected.id, direction });
  if (id && id !== selected.id) await timeline.select(id, { go: true });
  else panel.note.say(`there is no other ${selected.label}`);
}

/**
 * The row that the pointer is on, else that of what is selected; where there is none, that is said.
 * @param {Timeline} timeline
 */
function rowOf({ pointer, selected, panel }) {
  const row = pointer.row ?? selected?.row ?? null;
  if (!row) panel.explain("I, H, [ and ] are for the row under the pointer: point at one, or select something");
  return row;
}

/**
 * Redraw rows after a change of their arrangement, note it in the address, and announce it.
 * @param {Timeline} timeline
 * @param {string} said
 */
function arranged(timeline, said) {
  timeline.panel.showHiddenCount(timeline.layout.arrangement.hidden.size);
  timeline.panel.note.say(said);
  timeline.note();
  timeline.refresh();
}

const nameOf = (/** @type {Timeline} */ timeline, /** @type {string} */ key) =>
  timeline.layout.rowOf(key)?.label ?? "row";

/** @param {Timeline} timeline */
export function pinRow(timeline) {
  const row = rowOf(timeline);
  if (!row) return;
  const isPinned = timeline.layout.arrangement.pin(row);
  arranged(timeline, `${nameOf(timeline, row)} ${isPinned ? "stays on top" : "is back in its place"}`);
}

/** @param {Timeline} timeline */
export function hideRow(timeline) {
  const row = rowOf(timeline);
  if (!row) return;
  timeline.layout.arrangement.hidden.add(row);
  arranged(timeline, `${nameOf(timeline, row)} is hidden`);
}

/** @param {Timeline} timeline */
export function showHidden(timeline) {
  timeline.layout.arrangement.hidden.clear();
  arranged(timeline, "all rows are shown");
}

/**
 * Move a row, by default the one under the pointer, among those of its thread or GPU.
 * @param {Timeline} timeline
 * @param {number} places upward below zero
 * @param {string | null} [given] its key
 */
export function moveRow(timeline, places, given) {
  const row = given ?? rowOf(timeline);
  if (!row) return;
  const { rows } = timeline.data.ranks.get(Number(row.split(".")[0])) ?? { rows: [] };
  if (timeline.layout.arrangement.move(row, places, rows)) {
    arranged(timeline, `${nameOf(timeline, row)} moved ${places < 0 ? "up" : "down"}`);
  }
}
