// @ts-check
// Makes charts of the elements that dashboards/widgets/charts.py makes: their attribute `data-plots`
// holds what to draw, and its `kind` names the chart.
import { DEPTH } from "./depth.js";
import { HeatChart } from "./heat.js";
import { LanesChart } from "./lanes.js";
import { MatrixChart } from "./matrix.js";
import { RATES } from "./rates.js";
import { StacksChart } from "./stacks.js";
import { TimeRows } from "./time_rows.js";

/** @import { Chart, Drawn } from "./types.d.ts" */

/** @type {Record<string, (root: HTMLElement, drawn: any, label: string) => Chart>} */
const KINDS = {
  depth: (root, drawn, label) => new TimeRows(root, drawn, label, DEPTH),
  heat: (root, drawn, label) => new HeatChart(root, drawn, label),
  lanes: (root, drawn, label) => new LanesChart(root, drawn, label),
  matrix: (root, drawn, label) => new MatrixChart(root, drawn, label),
  rates: (root, drawn, label) => new TimeRows(root, drawn, label, RATES),
  stacks: (root, drawn, label) => new StacksChart(root, drawn, label),
};

/** Draw every such element from now on, and redraw it when its data change. */
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
  window.addEventListener("traceprof:redraw", () => {
    for (const { chart } of mounted.values()) chart.redraw();
  });
  mount();
}
