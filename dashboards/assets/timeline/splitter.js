// @ts-check
// The edge above the panel: a drag, or an arrow key on it, makes the panel higher or lower.
import { make } from "../elements.js";

const STEP = 24; // pixels, of an arrow key
const MIN = 60;
const KEPT = "traceprof-panel"; // under which this tab remembers the height

/** @param {HTMLElement} panel below the edge */
export function splitter(panel) {
  const edge = make("div", {
    class: "timeline-splitter", role: "separator", tabindex: 0, "aria-orientation": "horizontal",
    "aria-label": "height of the panel: drag, or arrow keys", title: "drag to make the panel higher or lower",
  });
  /** @param {number} height */
  const set = (height) => {
    const most = Math.max(innerHeight - 300, MIN);
    const within = Math.round(Math.min(Math.max(height, MIN), most));
    panel.style.height = panel.style.maxHeight = `${within}px`;
    edge.setAttribute("aria-valuenow", String(within));
    sessionStorage.setItem(KEPT, String(within));
  };
  const kept = Number(sessionStorage.getItem(KEPT));
  if (kept) set(kept);
  edge.addEventListener("pointerdown", (event) => {
    edge.setPointerCapture(event.pointerId);
    event.preventDefault();
  });
  edge.addEventListener("pointermove", (event) => {
    if (edge.hasPointerCapture(event.pointerId)) set(panel.getBoundingClientRect().bottom - event.clientY);
  });
  edge.addEventListener("keydown", (event) => {
    const way = { ArrowUp: 1, ArrowDown: -1 }[event.key];
    if (!way) return;
    event.preventDefault();
    event.stopPropagation();
    set(panel.offsetHeight + way * STEP);
  });
  edge.addEventListener("dblclick", () => {
    panel.style.height = panel.style.maxHeight = "";
    sessionStorage.removeItem(KEPT);
  });
  return edge;
}
