// @ts-check
// Makes a timeline of the element with the id `timeline`, which dashboards/pages/timeline.py makes.
import { TimelineNotes } from "./note_marks.js";
import { Timeline } from "./timeline.js";
// From now on make a timeline of every such element: pages come and go without the document being
// loaded anew. The element's property `timeline` leads to it.
export function mountTimelines() {
  /** @type {Timeline | null} */
  let current = null;
  const mount = () => {
    const root = document.getElementById("timeline");
    if (root === (current?.root ?? null)) return;
    current = root && new Timeline(root);
    if (!root || !current) return;
    current.notes = new TimelineNotes(current);
    Object.assign(root, { timeline: current });
  };
  window.addEventListener("popstate", () => {
    if (current?.root.isConnected) current.start();
  });
  window.addEventListener("traceprof:redraw", () => {
    current?.painter.restyle();
    current?.refresh();
  });
  new MutationObserver(mount).observe(document.body, { childList: true, subtree: true });
  mount();
}
