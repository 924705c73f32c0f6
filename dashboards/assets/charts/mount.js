// @ts-check
// Makes charts of the elements that dashboards/widgets/charts.py makes: their attribute `data-plots`
// holds what to draw, and its `kind` names the chart.
import { HeatChart } from "./heat.js";
import { LanesChart } from "./lanes.js";
import { MatrixChart } from "./matrix.js";
import { stacksChart } from "./stacks.js";
import { DEPTH, RATES, timeRows } from "./time_rows.js";

/** @import { Drawn, Mounted } from "./types.d.ts" */

/** @type {Record<string, (root: HTMLElement, drawn: any, label: string) => Mounted>} */
const KINDS = {
  depth: (root, drawn, label) => timeRows(root, drawn, label, DEPTH),
  heat: (root, drawn, label) => new HeatChart(root, drawn, label),
  lanes: (root, drawn, label) => new LanesChart(root, drawn, label),
  matrix: (root, drawn, label) => new MatrixChart(root, drawn, label),
  rates: (root, drawn, label) => timeRows(root, drawn, label, RATES),
  stacks: (root, drawn, label) => stacksChart(root, drawn, label),
};

/** @param {HTMLElement} root whose property `chart` leads to it */
export function chartOf(root) {
  const drawn = /** @type {Drawn} */ (JSON.parse(root.dataset["plots"] ?? ""));
  const make = KINDS[drawn.kind];
  if (!make) throw new Error(`there is no chart of the kind ${drawn.kind}`);
  const chart = make(root, drawn, root.dataset["label"] ?? "");
  Object.assign(root, { chart });
  return chart;
}
