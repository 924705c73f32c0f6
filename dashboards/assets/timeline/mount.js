// @ts-check
// Makes a timeline of the element with the id `timeline`, which dashboards/pages/timeline.py makes.
import { TimelineNotes } from "./note_marks.js";
import { Timeline } from "./timeline.js";

/** @param {HTMLElement} root whose property `timeline` leads to it */
export function timelineOf(root) {
  const timeline = new Timeline(root);
  timeline.notes = new TimelineNotes(timeline);
  const goBack = () => timeline.start();
  window.addEventListener("popstate", goBack);
  Object.assign(root, { timeline });
  return {
    redraw: () => timeline.refresh(),
    dispose: () => window.removeEventListener("popstate", goBack),
  };
}
