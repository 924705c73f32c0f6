// @ts-check
// Mouse and keyboard on the timeline.
import { goToNamesake, goToNeighbour, hideRow, moveRow, pinRow, showCollective, showHidden } from "./commands.js";
import { AXIS, GUTTER, rowAt } from "./geometry.js";

const WHEEL = 1.0018; // zoom per unit of the wheel
const LINE = 20; // pixels, for wheels that count lines
const PINCH = 5; // two fingers on a touchpad move it less
const CLICK_PIXELS = 4; // how far the mouse may move in a click
const PAN = 0.15; // of the view
const ZOOM = 0.7;
const ROW_PIXELS = 26; // that an arrow key scrolls
const TYPING_MS = 200; // after the last letter

/** @import { Timeline } from "./timeline.js" */
/** @import { Chosen, View } from "./types.d.ts" */

/** @typedef {"area" | "zoom" | "time" | null} Selects what a drag chooses; null where it moves the view */
/** @typedef {{ x: number, y: number, view: View, scroll: number, selects: Selects,
 *   moved: boolean, row: string | null }} Drag a drag: where and of what it began */

/** @param {EventTarget | null} element */
const isText = (element) =>
  element instanceof Element && element.closest("input, textarea, select, [contenteditable]");

/** @param {Timeline} timeline */
export function listenToInput(timeline) {
  listenToWheel(timeline);
  listenToDrags(timeline);
  listenToKeys(timeline);
  listenToQuery(timeline);
}

/**
 * @param {HTMLElement} canvas
 * @param {MouseEvent} event
 * @returns {[number, number]}
 */
function placeOn(canvas, event) {
  const box = canvas.getBoundingClientRect();
  return [event.clientX - box.left, event.clientY - box.top];
}

/** @param {Timeline} timeline */
function listenToWheel(timeline) {
  const { canvas } = timeline.panel;
  canvas.addEventListener("wheel", (event) => {
    const [x] = placeOn(canvas, event);
    if (x < GUTTER || event.altKey || !timeline.view) return; // scrolls the rows
    event.preventDefault();
    const scale = event.deltaMode === WheelEvent.DOM_DELTA_LINE ? LINE : 1;
    const sideways = event.shiftKey ? event.deltaX || event.deltaY : event.deltaX;
    if (event.shiftKey || Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
      timeline.pan((sideways * scale) / timeline.painter.plotWidth);
      return;
    }
    const pinch = event.ctrlKey ? PINCH : 1;
    timeline.zoom(WHEEL ** (event.deltaY * scale * pinch), timeline.timeAt(x));
  }, { passive: false });
}

/**
 * @param {number} x
 * @param {number} y
 * @param {MouseEvent} event
 * @returns {Selects}
 */
function selectsAt(x, y, event) {
  if (x < GUTTER) return null;
  if (event.shiftKey) return "area";
  if (event.ctrlKey) return "zoom";
  return y < AXIS ? "time" : null;
}

/** @param {Timeline} timeline */
function listenToDrags(timeline) {
  const { pointer } = timeline;
  const { canvas, scroller } = timeline.panel;
  /** @type {Drag | null} */
  let drag = null;
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0 || !timeline.view) return;
    const [x, y] = placeOn(canvas, event);
    const selects = selectsAt(x, y, event);
    const from = { x, y, view: { ...timeline.view }, scroll: scroller.scrollTop };
    const row = x < GUTTER ? rowAt(timeline.rows, y)?.track?.row ?? null : null;
    drag = { ...from, selects, moved: false, row };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const [x, y] = placeOn(canvas, event);
    if (!drag) {
      pointer.move(x, y, event.clientX, event.clientY);
      return;
    }
    moveDrag(timeline, drag, x, y);
  });
  canvas.addEventListener("pointerup", (event) => {
    const [x, y] = placeOn(canvas, event);
    const { chosen } = timeline;
    timeline.chosen = null;
    if (drag && !drag.moved) pointer.click(x, y);
    else if (drag && chosen) useChosen(timeline, chosen, drag.selects);
    drag = null;
  });
  canvas.addEventListener("pointercancel", () => {
    drag = timeline.chosen = null;
    timeline.refresh();
  });
  canvas.addEventListener("pointerleave", () => drag || pointer.leave());
  canvas.addEventListener("dblclick", () => timeline.fit());
}

/**
 * @param {Timeline} timeline
 * @param {Drag} drag
 * @param {number} x
 * @param {number} y
 */
function moveDrag(timeline, drag, x, y) {
  const { pointer } = timeline;
  const { canvas, scroller } = timeline.panel;
  drag.moved ||= Math.hypot(x - drag.x, y - drag.y) > CLICK_PIXELS;
  if (!drag.moved) return;
  pointer.forget();
  pointer.last = null;
  pointer.x = Math.max(x, GUTTER);
  if (drag.selects) {
    const [top, bottom] = drag.selects === "area" ? [Math.min(y, drag.y), Math.max(y, drag.y)] : [];
    timeline.chosen = { from: drag.x, to: Math.max(x, GUTTER), top, bottom };
    timeline.refresh();
    return;
  }
  canvas.style.cursor = "grabbing";
  if (drag.row) {
    dragRow(timeline, drag.row, y);
    return;
  }
  scroller.scrollTop = drag.scroll - (y - drag.y);
  const moved = ((x - drag.x) / timeline.painter.plotWidth) * drag.view.span;
  timeline.setView({ start: drag.view.start - moved, span: drag.view.span });
}

/**
 * Move a row to where its name is dragged, among those that it can stand with.
 * @param {Timeline} timeline
 * @param {string} key
 * @param {number} y
 */
function dragRow(timeline, key, y) {
  const from = timeline.layout.rowOf(key);
  const to = rowAt(timeline.rows, y);
  if (!from?.track || !to?.track || to === from || Boolean(to.pinned) !== Boolean(from.pinned)) return;
  if (!from.pinned && (to.number !== from.number || to.track.group !== from.track.group)) return;
  const between = timeline.rows.filter((row) => row.track && Boolean(row.pinned) === Boolean(from.pinned));
  moveRow(timeline, between.indexOf(to) - between.indexOf(from), key);
}

/**
 * The choice of a finished drag: an area of rows that is kept, a piece of time to zoom to, or one
 * that all pages show from now on.
 * @param {Timeline} timeline
 * @param {Chosen} chosen
 * @param {Selects} selects
 */
function useChosen(timeline, { from, to, top = 0, bottom = 0 }, selects) {
  if (selects === "area") {
    timeline.areas.select({ x: from, y: top }, { x: to, y: bottom });
    return;
  }
  const [start, end] = [Math.min(from, to), Math.max(from, to)].map((x) => timeline.timeAt(x));
  if (selects === "time") timeline.place.choose(start, end);
  else timeline.frame(start, end, 1);
}

/** @param {Timeline} timeline */
function listenToKeys(timeline) {
  const { query, scroller } = timeline.panel;
  const middle = () => timeline.pointer.x ?? GUTTER + timeline.painter.plotWidth / 2;
  const zoom = (/** @type {number} */ factor) => timeline.zoom(factor, timeline.timeAt(middle()));
  const scroll = (/** @type {number} */ rows) => { scroller.scrollTop += rows * ROW_PIXELS; };
  /** @type {Record<string, () => void>} */
  const keys = {
    w: () => zoom(ZOOM), "+": () => zoom(ZOOM), "=": () => zoom(ZOOM),
    s: () => zoom(1 / ZOOM), "-": () => zoom(1 / ZOOM),
    a: () => timeline.pan(-PAN), d: () => timeline.pan(PAN),
    arrowleft: () => timeline.pan(-PAN), arrowright: () => timeline.pan(PAN),
    arrowup: () => scroll(-1), arrowdown: () => scroll(1),
    pageup: () => scroll(-10), pagedown: () => scroll(10),
    home: () => timeline.home(), f: () => timeline.fit(),
    n: () => timeline.search.go("next"), p: () => timeline.search.go("previous"),
    "/": () => { query.focus(); query.select(); },
    ",": () => goToNeighbour(timeline, "previous"), ".": () => goToNeighbour(timeline, "next"),
    b: () => timeline.back(), backspace: () => timeline.back(),
    l: () => timeline.search.list(),
    t: () => timeline.areas.statistics(), e: () => timeline.areas.list(),
    ...(timeline.linked ? {} : { c: () => showCollective(timeline), k: () => timeline.path.toggle() }),
    o: () => goToNamesake(timeline, "next"),
    "[": () => moveRow(timeline, -1), "]": () => moveRow(timeline, 1),
    "?": () => timeline.panel.toggleKeys(),
    i: () => pinRow(timeline), h: () => hideRow(timeline), u: () => showHidden(timeline),
    escape: () => { timeline.path.forget(); timeline.deselect(); },
  };
  const onKey = (/** @type {KeyboardEvent} */ event) => {
    if (!timeline.root.isConnected) {
      document.removeEventListener("keydown", onKey);
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || isText(event.target)) return;
    if (timeline.linked && timeline.linked.active !== timeline) return;
    const key = event.key.toLowerCase();
    const act = key === "o" && event.shiftKey ? () => goToNamesake(timeline, "previous") : keys[key];
    if (!act || !timeline.view) return;
    event.preventDefault();
    act();
  };
  document.addEventListener("keydown", onKey);
}

/** @param {Timeline} timeline */
function listenToQuery(timeline) {
  const { canvas, names, query } = timeline.panel;
  let typing = 0;
  query.addEventListener("input", () => {
    clearTimeout(typing);
    typing = setTimeout(() => {
      timeline.search.count();
      timeline.note();
    }, TYPING_MS);
  });
  query.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      clearTimeout(typing);
      timeline.search.go(event.shiftKey ? "previous" : "next");
    } else if (event.key === "Escape") {
      event.preventDefault(); // Escape would empty the field, but N and P still need the text
      names.hidden = true;
      canvas.focus();
    }
  });
  query.addEventListener("blur", () => setTimeout(() => { names.hidden = true; }, TYPING_MS));
}
