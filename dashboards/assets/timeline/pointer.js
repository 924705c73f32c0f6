// @ts-check
// The thing under the pointer, its tooltip, and a click on it.
import { AXIS, GUTTER, NEAR, NEAR_MARK, flagAt, rowAt } from "./geometry.js";
import { takesTime } from "./lists.js";
import { partAt } from "./path.js";
import { spreadAt, spreadLines } from "./spreads.js";
import { shownAt } from "./tiles.js";
import { duration, grouped } from "./time.js";

/** @import { Timeline } from "./timeline.js" */
/** @import { EventDetails, Hit, PathPart, Row, Summary } from "./types.d.ts" */

const HOVER_MS = 60;
const MAX_FACTS = 9;

export class TimelinePointer {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {number | null} */
    this.x = null; // where it is in the plot
    /** @type {[number, number, number, number] | null} */
    this.last = null; // where it was seen last: on the canvas, in the window
    this.describing = 0;
    /** @type {Hit | null} */
    this.hover = null; // the event or block that it is on
  }

  /** The key of the row that it is on, or null. */
  get row() {
    const row = this.last && rowAt(this.timeline.rows, this.last[1]);
    return row?.track?.row ?? null;
  }

  /**
   * The row at a place, and the event (with its id) or block there.
   * @param {number} x
   * @param {number} y
   */
  #hit(x, y) {
    const { timeline } = this;
    const row = rowAt(timeline.rows, y);
    if (y < AXIS || !row?.track || x < GUTTER) return { row };
    const tile = timeline.data.tiles.get(row.track.row);
    if (!tile) return { row };
    if (!timeline.view) return { row };
    const pixels = row.track.kind === "marks" ? NEAR_MARK : NEAR;
    const near = (pixels * timeline.view.span) / timeline.painter.plotWidth;
    const shown = shownAt(tile, timeline.timeAt(x), near);
    if (!shown) return { row };
    /** @type {Hit} */
    const hit = { ...shown, row: row.track.row };
    if (shown.event !== undefined) hit.id = `${row.number}.${row.track.source}.${shown.event}`;
    return { row, hit };
  }

  /**
   * All that is at a place: also the part of the critical path, what is known of all ranks, the flag
   * of a finding and the note.
   * @param {number} x
   * @param {number} y
   */
  #under(x, y) {
    const { flags, notes, painter, path, view } = this.timeline;
    const { row, hit } = this.#hit(x, y);
    const time = this.timeline.timeAt(x);
    const inPlot = x >= GUTTER && view;
    return {
      row, hit,
      finding: flagAt(flags, painter.x, x, y),
      part: inPlot && row?.type === "path" ? partAt(path.shown?.parts ?? [], time) : null,
      spread: inPlot && row?.spreads
        ? spreadAt(row.spreads, time, (NEAR * view.span) / painter.plotWidth) : null,
      note: notes?.at(x, y),
    };
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} pageX
   * @param {number} pageY
   */
  move(x, y, pageX, pageY) {
    const { timeline, hover } = this;
    const { canvas } = timeline.panel;
    this.last = [x, y, pageX, pageY];
    this.x = x >= GUTTER ? x : null;
    const { row, hit, finding, part, spread, note } = this.#under(x, y);
    const isSame = hit && hover && hit.row === hover.row && hit.start === hover.start &&
      hit.id === hover.id;
    if (!isSame) this.hover = hit ?? null;
    timeline.linked?.pointed(timeline, this.x);
    const isButton = hit || finding || note || row?.foldable || part || spread;
    canvas.style.cursor = isButton ? "pointer" : x < GUTTER ? "default" : "grab";
    timeline.refresh();
    const lines = (finding && [`${finding.severity}: ${finding.finding}`, finding.label])
      ?? note?.lines ?? (part && partLines(part)) ?? (spread && spreadLines(spread));
    if (lines) {
      timeline.panel.note.show(lines, pageX, pageY);
    } else if (!isSame) {
      clearTimeout(this.describing);
      timeline.panel.note.hide();
      if (hit) this.describing = setTimeout(() => this.#describe(hit, pageX, pageY), HOVER_MS);
    }
  }

  // More data came: something else may be under the pointer now.
  again() {
    if (this.last) this.move(...this.last);
  }

  // The thing under it has moved away.
  forget() {
    this.hover = null;
    clearTimeout(this.describing);
    this.timeline.panel.note.hide();
  }

  leave() {
    this.x = this.last = null;
    this.timeline.linked?.pointed(this.timeline, null);
    this.forget();
    this.timeline.refresh();
  }

  /**
   * @param {Hit} hit
   * @param {number} x
   * @param {number} y
   */
  async #describe(hit, x, y) {
    const { data, panel } = this.timeline;
    try {
      const lines = hit.id
        ? eventLines(await data.event(hit.id))
        : blockLines(hit, await data.answer("block", { row: hit.row, start: hit.start, end: hit.end }));
      if (this.hover === hit) panel.note.show(lines, x, y);
    } catch {
      // The panel reports a server that is gone.
    }
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  click(x, y) {
    const { timeline } = this;
    const { row, hit, finding, part, spread, note } = this.#under(x, y);
    if (note) timeline.notes?.go(note);
    else if (finding) timeline.showEvidence(finding.rank, finding.source);
    else if (part) timeline.path.choose(part);
    else if (spread) timeline.together.showLate(spread);
    else if (row?.type === "path") timeline.path.describe();
    else if (row?.foldable) timeline.fold(row);
    else if (hit?.id) timeline.select(hit.id);
    else if (hit) timeline.selectBlock({ ...hit, share: hit.share ?? 0 });
    else timeline.deselect();
  }
}

/** @param {PathPart} part */
export const partLines = ({ name, kind, length, rank }) =>
  [name, `${duration(length)} · ${kind} · rank ${rank}`, "on the critical path"];

/** @param {EventDetails} event */
export function eventLines(event) {
  const facts = event.facts.slice(0, MAX_FACTS).map(([name, value]) => `${name}: ${value}`);
  const what = event.kind === "marks" ? "mark" : duration(event.length);
  return [event.label, [what, event.group].filter(Boolean).join(" · "), ...facts];
}

/**
 * @param {Hit} hit
 * @param {Summary} summary
 */
export function blockLines(hit, summary) {
  if (summary.said) return [...summary.said, `in ${duration(hit.end - hit.start)}`];
  const events = `${grouped(summary.count)} ${summary.count === 1 ? "event" : "events"}`;
  const covered = takesTime(summary) ? [`${((hit.share ?? 0) / 10).toFixed(1)} % covered`] : [];
  return [
    [`${events} in ${duration(hit.end - hit.start)}`, ...covered].join(", "),
    ...summary.names.map(({ name, count, total }) =>
      [`${grouped(count)} × ${name}`, ...(covered.length ? [duration(Number(total))] : [])].join(", ")),
  ];
}
