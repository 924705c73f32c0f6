import assert from "node:assert/strict";
import test from "node:test";
import { spreadAt, spreadLines, spreadsOf } from "../../../dashboards/assets/timeline/spreads.js";

const STEP = { name: "step 3", start: "100", end: "1100", least: 900, median: 1000, most: 1200, rank: 5 };

test("the ranks' times of a step, and the latest of them", () => {
  const late = { rank: 2, length: 1500, id: "2.op.7" };
  assert.deepEqual(spreadLines({ ...STEP, late }), ["step 3", "the ranks took 1 µs in the median",
    "900 ns to 1.20 µs, rank 5 the longest", "rank 2 came 1.50 µs after the median of the others"]);
  assert.deepEqual(spreadLines({ ...STEP, least: 0, name: "AllReduce", late: null }), ["AllReduce",
    "half of the ranks came within 1 µs of the first", "rank 5 came 1.20 µs after it"]);
});

test("what is at a time, or near it", () => {
  const spreads = spreadsOf([STEP, { ...STEP, start: "1100", end: "2100" }], (time) => Number(time) - 100);
  assert.equal(spreadAt(spreads, 500, 0), spreads[0]);
  assert.equal(spreadAt(spreads, 1000, 0), spreads[1]);
  assert.equal(spreadAt(spreads, 2003, 5), spreads[1]);
  assert.equal(spreadAt(spreads, 2010, 5), undefined);
});
