import assert from "node:assert/strict";
import test from "node:test";
import { cellLines, scaleEnds, strength } from "../../../dashboards/assets/charts/heat.js";
import { extent } from "../../../dashboards/assets/charts/lanes.js";
import { pairLines, ranksOf } from "../../../dashboards/assets/charts/matrix.js";
import { barLines, nearest, wholeRange } from "../../../dashboards/assets/charts/stacks.js";
import { decimalTexts, linearTicks, logTicks } from "../../../dashboards/assets/charts/ticks.js";
import { depthLines, limits, pieceAt, pieceLines, scaleOf, sharedTime, withPiece } from "../../../dashboards/assets/charts/time_rows.js";

test("a bar says its parts from the top and the range of its steps", () => {
  const row = {
    title: "rank 3", labels: ["step 7"], idle_ns: [1e6], compute_ns: [3e6],
    shortest_ns: [35e5], longest_ns: [45e5], slow: [{ bar: 0, number: "7", why: "a file" }],
  };
  const parts = [{ field: "idle_ns", name: "idle" }, { field: "compute_ns", name: "compute" }];
  assert.deepEqual(barLines(row, 0, { parts }), [
    "rank 3, step 7", "4 ms", "compute: 3 ms (75.0 %)", "idle: 1 ms (25.0 %)",
    "steps of 3.5 to 4.5 ms", "step 7: a file"]);
});

test("a scale says where values lie beyond its ends", () => {
  const rows = [{ length_ns: [1e6, null, 5e6] }];
  assert.deepEqual(scaleEnds({ rows, low: 1e6, high: 5e6 }), ["5 ms", "1 ms"]);
  assert.deepEqual(scaleEnds({ rows, low: 2e6, high: 4e6 }), ["≥ 4 ms", "≤ 2 ms"]);
  assert.deepEqual(scaleEnds({ rows, low: 0, high: 181_237 }), ["≥ 181 µs", "0"]);
});

test("pieces of time are equally long and end with the last", () => {
  assert.deepEqual(limits({ start: 0, end: 4e9, mean: [1, 2] }), [0, 2, 4]);
});

test("where nothing was measured, that is said", () => {
  const row = {
    title: "PCIe", unit: "GB/s", start: 0, end: 1e9, mean: [null], most: [2], most_name: "most",
    limit_text: null,
  };
  assert.deepEqual(pieceLines(row, 0),
    ["PCIe", "at 0.000000 s", "mean over time: nothing", "most: 2 GB/s"]);
});

test("colours end where the scale does", () => {
  const scale = { low: 10, high: 20 };
  assert.deepEqual([5, 10, 15, 20, 99].map((value) => strength(value, scale)), [0, 0, 0.5, 1, 1]);
});

test("a cell without a step says so", () => {
  const drawn = {
    rows: [{ title: "rank 0", length_ns: [null, 4e6, 0] }], labels: ["a", "b", "c"], before: "", zero: "",
  };
  assert.deepEqual(cellLines(drawn, 0, 0), ["rank 0, a", "no step"]);
  assert.deepEqual(cellLines(drawn, 0, 1), ["rank 0, b", "4 ms"]);
  assert.deepEqual(cellLines(drawn, 0, 2), ["rank 0, c", "0 ns"]);
  const late = { ...drawn, before: "late by ", zero: "not the last" };
  assert.deepEqual(cellLines(late, 0, 1), ["rank 0, b", "late by 4 ms"]);
  assert.deepEqual(cellLines(late, 0, 2), ["rank 0, c", "not the last"]);
});

test("no two numbers at an axis are written alike", () => {
  const places = [0.002, 0.0025, 0.003, 0.0035];
  assert.deepEqual(decimalTexts(places, 0.0005), ["0.0020", "0.0025", "0.0030", "0.0035"]);
  assert.deepEqual(decimalTexts([-1, 0, 1], 1), ["−1", "0", "1"]);
  assert.deepEqual(decimalTexts([0, 50, 100], 50), ["0", "50", "100"]);
  assert.deepEqual(decimalTexts([0, 0.1], 0.1), ["0.0", "0.1"]);
  assert.deepEqual(decimalTexts([0.025, 0.05], 0.025), ["0.025", "0.050"]);
});

test("rows above one axis are drawn over the same time and the same steps", () => {
  assert.deepEqual(sharedTime([{ start: 2e9, end: 5e9 }, { start: 1e9, end: 3e9 }]), [1, 5]);
  assert.deepEqual(wholeRange([{ step: [0, 1, 2] }, { step: [1, 2, 3] }, { step: [7] }]), [-0.5, 7.5]);
  assert.deepEqual(wholeRange([{ step: [10] }]), [9.5, 10.5]);
  assert.deepEqual(wholeRange([{ step: [0, 5, 10] }]), [-2.5, 12.5]); // five to a bar
});

test("the pointer is on the nearest bar", () => {
  assert.deepEqual([-9, 0.4, 0.6, 1, 3.9, 99].map((value) => nearest([0, 1, 7], value)), [0, 0, 1, 1, 1, 2]);
  assert.equal(nearest([3], 5), 0);
});

const UTC = "1726722437796624059";

test("a zoom is in the address to the nanosecond, also of UTC times", () => {
  assert.equal(withPiece("http://x/links?rank=1", UTC, 0.000000001, 1.5),
    "/links?rank=1&start=1726722437796624060&end=1726722439296624059");
  assert.equal(withPiece("http://x/links", "0", -1, 2), "/links?start=-1000000000&end=2000000000");
});

test("the pointer is in the piece that began last", () => {
  const times = [0, 1, 1.5, 4];
  assert.deepEqual([-1, 0, 0.9, 1, 1.7, 4, 9].map((time) => pieceAt(times, time)), [0, 0, 0, 1, 2, 2, 2]);
});

test("a piece says how deep the queue was and for how long the host was blocked", () => {
  const row = {
    title: "rank 0", times: [0, 10, 20, 40], least: [1, 2, 3], most: [1, 5, 3],
    limit_text: "limit of the process: 9", blocked: { starts: [12], ends: [20], shares: [0.25] },
  };
  assert.deepEqual(depthLines(row, 0),
    ["rank 0", "at 0.000000 s", "1 launches pending", "limit of the process: 9"]);
  assert.deepEqual(depthLines(row, 1).slice(2, 4),
    ["2 to 5 launches pending", "host blocked in a launch for 25.0 % of this time"]);
  assert.equal(depthLines({ ...row, limit_text: null }, 2).length, 3);
});

test("a pair of ranks says both and how much", () => {
  const columns = [{ name: "rank 0 (a)" }, { name: "rank 1 (b)" }];
  const rows = [{ name: "rank 0 (a)", texts: [null, "3 ms"], notes: null }];
  const drawn = { rows, columns, between: "waited for" };
  assert.deepEqual(pairLines(drawn, 0, 1), ["rank 0 (a) waited for rank 1 (b)", "3 ms"]);
  assert.deepEqual(pairLines(drawn, 0, 0), ["rank 0 (a) waited for rank 0 (a)", "nothing"]);
  rows[0].notes = [null, "all of it"];
  assert.equal(pairLines(drawn, 0, 1)[1], "all of it");
  assert.deepEqual(ranksOf(drawn, 0, 1), []);
});

const node = (name, ...ranks) => ({ name, ranks, texts: ["1 ms", "2 ms"], notes: null });

test("a cell of a matrix by machine leads to the ranks of both machines", () => {
  const drawn = { rows: [node("a", 8, 9), node("b", 0, 10)], columns: [node("a", 8, 9), node("b", 0, 10)], between: "to" };
  assert.deepEqual(ranksOf(drawn, 0, 1), [0, 8, 9, 10]);
  assert.deepEqual(ranksOf(drawn, 0, 0), [8, 9]);
  assert.equal(pairLines(drawn, 0, 1)[2], "a click shows the ranks of both");
});

const lanes = (scale, ...x) => extent({ scale, per: 1, series: [{ values: x }] });

test("lanes begin at 0, unless their axis is logarithmic", () => {
  assert.deepEqual(lanes("linear", 10, 20), [0, 21]);
  assert.deepEqual(lanes("linear", -10, 10), [-11, 11]);
  assert.deepEqual(lanes("linear", -20), [-21, 0]);
  assert.deepEqual(lanes("linear", 0), [0, 1]);
  assert.deepEqual(lanes("log", 0, 13, 100), [10, 130]);
  assert.deepEqual(lanes("log", 0), [1, 10]);
});

test("ticks are 1, 2 or 5 of a power of ten apart", () => {
  assert.deepEqual(linearTicks(0, 1, 5), { places: [0, 0.2, 0.4, 0.6000000000000001, 0.8, 1], texts: ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"] });
  assert.deepEqual(linearTicks(-7, 22, 4).texts, ["0", "10", "20"]);
  assert.deepEqual(linearTicks(0, 2, 9, true).texts, ["0", "1", "2"]);
  assert.deepEqual(logTicks(4, 30).texts, ["5", "10", "20"]);
  assert.deepEqual(logTicks(0.04, 0.3).texts, ["0.05", "0.1", "0.2"]);
  assert.deepEqual(logTicks(1, 1e6).texts, ["1", "10", "100", "1,000", "10,000", "100,000", "1,000,000"]);
});

const scaleOfRow = (title, unit) => scaleOf({ title, unit });

test("rows of several ranks that show the same have one scale", () => {
  assert.equal(scaleOfRow("rank 0", "launches"), scaleOfRow("rank 12", "launches"));
  assert.equal(scaleOfRow("rank 0 · NVLink sent · copies", "GB/s"), scaleOfRow("rank 3 · NVLink sent · copies", "GB/s"));
  assert.notEqual(scaleOfRow("rank 0 · NVLink sent · copies", "GB/s"), scaleOfRow("rank 0 · PCIe sent · copies", "GB/s"));
});
