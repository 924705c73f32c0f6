// @ts-check
// What keys and buttons do beyond moving the view: the next event, rows pinned and hidden.
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

/**
 * Show the selected kernel's collective on all of its ranks.
 * @param {Timeline} timeline
 */
export function showCollective({ selected, together }) {
  if (selected) together.show(selected);
}

/**
 * Select the next or the previous event of the row; with none selected, the first in view.
 * @param {Timeline} timeline
 * @param {"next" | "previous"} direction
 */
export async function goToNeighbour(timeline, direction) {
  const { selected, view, data } = timeline;
  if (selected) {
    const { id } = await data.neighbour(selected.id, direction);
    if (id) await timeline.select(id, { go: true });
    return;
  }
  const row = timeline.rows.find(({ track }) => track?.source === "op");
  if (!row?.track || !view) return;
  const { events } = await data.listed([row.track.row], view.start, view.start + view.span);
  if (events.length) await timeline.select(events[0].id, { go: true });
}

// The row that the pointer is on, else that of what is selected.
const rowOf = (/** @type {Timeline} */ { pointer, selected }) => pointer.row ?? selected?.row ?? null;

/**
 * Pin a row to the top, or no more.
 * @param {Timeline} timeline
 */
export function pinRow(timeline) {
  const row = rowOf(timeline);
  if (row) timeline.layout.pin(row);
  timeline.refresh();
}

/** @param {Timeline} timeline */
export function hideRow(timeline) {
  const row = rowOf(timeline);
  if (row) timeline.layout.hidden.add(row);
  timeline.panel.showHiddenCount(timeline.layout.hidden.size);
  timeline.refresh();
}

/** @param {Timeline} timeline */
export function showHidden(timeline) {
  timeline.layout.hidden.clear();
  timeline.panel.showHiddenCount(0);
  timeline.refresh();
}
