// @ts-check
// Makes charts of the elements that dashboards/widgets/plots.py makes: their attribute `data-plots`
// says what to draw, and its `kind` names who draws it.
import { HeatChart } from "./heat.js";
import { RatesChart } from "./rates.js";
import { StacksChart } from "./stacks.js";

/** @import { Chart, Drawn } from "./types.d.ts" */

/** @type {Record<string, (root: HTMLElement, drawn: any, label: string) => Chart>} */
const KINDS = {
  heat: (root, drawn, label) => new HeatChart(root, drawn, label),
  rates: (root, drawn, label) => new RatesChart(root, drawn, label),
  stacks: (root, drawn, label) => new StacksChart(root, drawn, label),
};

/** From now on draw every such element, and anew where what it is to draw changes. */
export function mountCharts() {
  /** @type {Map<HTMLElement, { written: string, chart: Chart }>} */
  const mounted = new Map();
  const mount = () => {
    for (const [root, { chart }] of mounted) {
      if (root.isConnected) continue;
      chart.dispose();
      mounted.delete(root);
    }
    for (const root of document.querySelectorAll("[data-plots]")) {
      if (!(root instanceof HTMLElement)) continue;
      const written = root.dataset["plots"] ?? "";
      if (mounted.get(root)?.written === written) continue;
      mounted.get(root)?.chart.dispose();
      const drawn = /** @type {Drawn} */ (JSON.parse(written));
      const make = KINDS[drawn.kind];
      if (!make) throw new Error(`there is no chart of the kind ${drawn.kind}`);
      mounted.set(root, { written, chart: make(root, drawn, root.dataset["label"] ?? "") });
    }
  };
  new MutationObserver(mount).observe(document.body, {
    childList: true, subtree: true, attributes: true, attributeFilter: ["data-plots"],
  });
  window.addEventListener("traceprof:theme", () => {
    for (const { chart } of mounted.values()) chart.redraw();
  });
  mount();
}
