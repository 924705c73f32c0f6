// @ts-check
// Tiles: one row of events around one view, at the screen's resolution. They are made in
// dashboards/timeline/tiles.py. This module requests and reads them, and finds what is drawn at a time.
/** @import { Shown, Tile, TileReply, View } from "./types.d.ts" */

const MARGIN = 0.25; // of the view, requested on either side: panning shows something at once
const MIN_MARGIN = 0.1; // least remaining margin; below it a tile is requested again

/**
 * The window to ask for, to show a view in a number of columns: whole ns from the base.
 * @param {View} view
 * @param {number} columns
 */
export function requestFor(view, columns) {
  return {
    start: Math.floor(view.start - view.span * MARGIN),
    end: Math.ceil(view.start + view.span * (1 + MARGIN)),
    columns: Math.round(columns * (1 + 2 * MARGIN)),
  };
}

/**
 * The tile of a reply: its columns counted from the tile's start rather than from one another, and
 * what it was asked for.
 * @param {TileReply} reply
 * @param {{ start: number, end: number }} request
 * @param {View} view
 * @param {number} columns
 */
export function decoded(reply, { start, end }, view, columns) {
  let column = 0;
  const counted = reply.column.map((distance) => (column += distance));
  const asked = { asked: columns, viewSpan: view.span };
  return { ...reply, ...asked, column: counted, start, span: end - start };
}

/**
 * @param {Tile | undefined} tile
 * @param {View} view
 * @param {number} columns
 */
export function isFresh(tile, view, columns) {
  return tile !== undefined && tile.asked === columns && tile.viewSpan === view.span &&
    tile.start <= view.start - view.span * MIN_MARGIN &&
    tile.start + tile.span >= view.start + view.span * (1 + MIN_MARGIN);
}

/**
 * The event of a tile nearest to a time, at most `near` ns away: {index, distance}, or null.
 * @param {Tile} tile
 * @param {number} offset
 * @param {number} near
 */
function nearest(tile, offset, near) {
  /** @type {{ index: number, distance: number } | null} */
  let best = null;
  for (const [index, begin] of tile.begin.entries()) {
    const distance = Math.max(begin - offset, offset - begin - tile.length[index], 0);
    if (distance <= near && (!best || distance <= best.distance)) best = { index, distance };
  }
  return best;
}

/**
 * The content of a tile at a time: {start, end, event} of an event, {start, end, share} of a block
 * of short ones (share in thousandths), or null. An event that runs then comes before a block, a
 * block before an event that is at most `near` ns away.
 * @param {Tile} tile
 * @param {number} time
 * @param {number} near
 */
export function shownAt(tile, time, near) {
  const offset = time - tile.start;
  const event = nearest(tile, offset, near);
  const unit = tile.span / tile.columns;
  const column = tile.column.indexOf(Math.floor(offset / unit));
  if (column >= 0 && event?.distance !== 0) {
    const start = tile.start + tile.column[column] * unit;
    return { start, end: start + unit, share: tile.share[column] };
  }
  if (!event) return null;
  const start = tile.start + tile.begin[event.index];
  return { start, end: start + tile.length[event.index], event: tile.event[event.index] };
}
