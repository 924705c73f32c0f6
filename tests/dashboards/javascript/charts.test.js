import assert from "node:assert/strict";
import test from "node:test";
import { cellLines, scaleEnds, strength } from "../../../dashboards/assets/charts/heat.js";
import { tickTexts } from "../../../dashboards/assets/charts/plot.js";
import { limits, pieceLines, sharedTime } from "../../../dashboards/assets/charts/rates.js";
import { axisRange, barLines, stacked } from "../../../dashboards/assets/charts/stacks.js";

const PARTS = [[1, 2], [10, 20], [100, 200]];

test("parts add up from the bottom", () => {
  assert.deepEqual(stacked(PARTS, new Set()), [[1, 2], [11, 22], [111, 222]]);
  assert.deepEqual(stacked([], new Set()), []);
});

test("a part that is left out has no height", () => {
  assert.deepEqual(stacked(PARTS, new Set([1])), [[1, 2], [1, 2], [101, 202]]);
});

test("a bar says its parts from the top and the range of its steps", () => {
  const row = { title: "rank 3", labels: ["step 7"], parts: [[1], [3]], least: [3.5], most: [4.5] };
  const parts = [{ name: "idle" }, { name: "compute" }];
  assert.deepEqual(barLines(row, 0, { parts, unit: "ms" }), [
    "rank 3, step 7", "4 ms", "compute: 3 ms (75.0 %)", "idle: 1 ms (25.0 %)",
    "steps of 3.5 to 4.5 ms"]);
});

test("a scale says where values lie beyond its ends", () => {
  const rows = [{ values: [1, null, 5] }];
  assert.deepEqual(scaleEnds({ rows, low: 1, high: 5 }), ["5", "1"]);
  assert.deepEqual(scaleEnds({ rows, low: 2, high: 4 }), ["≥ 4", "≤ 2"]);
});

test("pieces of time are equally long and end with the last", () => {
  assert.deepEqual(limits({ start: 0, end: 4e9, mean: [1, 2] }), [0, 2, 4]);
});

test("where nothing was measured, that is said", () => {
  const row = {
    title: "PCIe", unit: "GB/s", start: 0, end: 1e9, mean: [null], most: [2], most_name: "most",
    peak_text: null,
  };
  assert.deepEqual(pieceLines(row, 0),
    ["PCIe", "at 0.000000 s", "mean over time: nothing", "most: 2 GB/s"]);
});

test("colours end where the scale does", () => {
  const scale = { low: 10, high: 20 };
  assert.deepEqual([5, 10, 15, 20, 99].map((value) => strength(value, scale)), [0, 0, 0.5, 1, 1]);
});

test("a cell without a step says so", () => {
  const drawn = { rows: [{ title: "rank 0", values: [null, 4] }], labels: ["a", "b"], unit: "ms" };
  assert.deepEqual(cellLines(drawn, 0, 0), ["rank 0, a", "no step"]);
  assert.deepEqual(cellLines(drawn, 0, 1), ["rank 0, b", "4 ms"]);
});

test("no two numbers at an axis are written alike", () => {
  const places = [0.002, 0.0025, 0.003, 0.0035];
  assert.deepEqual(tickTexts(null, places, 0, 50, 0.0005), ["0.0020", "0.0025", "0.0030", "0.0035"]);
  assert.deepEqual(tickTexts(null, [-1, 0, 1], 0, 50, 1), ["−1", "0", "1"]);
  assert.deepEqual(tickTexts(null, [0, 50, 100], 0, 50, 50), ["0", "50", "100"]);
  assert.deepEqual(tickTexts(null, [0, 0.1], 0, 50, 0.1), ["0.0", "0.1"]);
});

test("rows above one axis are drawn over the same time and the same steps", () => {
  assert.deepEqual(sharedTime([{ start: 2e9, end: 5e9 }, { start: 1e9, end: 3e9 }]), [1, 5]);
  const rows = [{ x: [0, 1, 2] }, { x: [1, 2, 3] }, { x: [7] }];
  assert.deepEqual(axisRange(rows[1].x, rows, 1, 3), [-0.5, 7.5]);
  assert.deepEqual(axisRange(rows[2].x, rows, 0, 14), [-0.5, 7.5]);
  assert.deepEqual(axisRange([10], [{ x: [10] }], 0, 20), [9.5, 10.5]);
  assert.deepEqual(axisRange(rows[0].x, rows, 0.4, 1.6), [0.4, 1.6]); // zoomed in
  assert.deepEqual(axisRange([0, 5, 10], [{ x: [0, 5, 10] }], 0, 10), [-2.5, 12.5]); // five to a bar
});
