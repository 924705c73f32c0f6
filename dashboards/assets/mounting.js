// @ts-check
// Draws elements of pages as soon as a page has them: pages change without the document being loaded anew.
/** @import { Mounted } from "./charts/types.d.ts" */

/**
 * @param {string} selector of the elements
 * @param {() => Promise<(root: HTMLElement) => Mounted>} load what draws one of them, once there is one
 */
export function mount(selector, load) {
  /** @type {Map<HTMLElement, { written: string | undefined, drawn: Mounted }>} */
  const mounted = new Map();
  /** @type {ReturnType<typeof load> | null} */
  let loading = null;
  const observer = new MutationObserver(async () => {
    for (const [root, { drawn }] of mounted) {
      if (root.isConnected) continue;
      drawn.dispose?.();
      mounted.delete(root);
    }
    if (!document.querySelector(selector)) return;
    const draw = await (loading ??= load());
    for (const root of /** @type {NodeListOf<HTMLElement>} */ (document.querySelectorAll(selector))) {
      const written = root.dataset["plots"];
      const before = mounted.get(root);
      if (before && before.written === written) continue;
      before?.drawn.dispose?.();
      mounted.set(root, { written, drawn: draw(root) });
    }
  });
  observer.observe(document.body, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["data-plots"],
  });
  window.addEventListener("traceprof:redraw", () => {
    for (const { drawn } of mounted.values()) drawn.redraw();
  });
}
