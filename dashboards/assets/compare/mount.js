// @ts-check
// Draws the sides of a comparison in the element that dashboards/pages/compare.py makes for them.
import { ComparedTimelines } from "./timelines.js";

/** From now on draw every such element: pages come and go without the document being loaded anew. */
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
