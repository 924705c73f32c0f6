// @ts-check
// Draws the sides of a comparison in the element that dashboards/pages/compare.py makes.
import { ComparedTimelines } from "./timelines.js";

/** Draw every such element from now on: pages change without reloading the document. */
export function mountComparison() {
  /** @type {ComparedTimelines | null} */
  let current = null;
  const mount = () => {
    const root = document.getElementById("compare-timelines");
    if (root === (current?.root ?? null)) return;
    current = root && new ComparedTimelines(root);
  };
  window.addEventListener("traceprof:theme", () => current?.restyle());
  new MutationObserver(mount).observe(document.body, { childList: true, subtree: true });
  mount();
}
