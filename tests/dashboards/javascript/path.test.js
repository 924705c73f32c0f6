import assert from "node:assert/strict";
import test from "node:test";
import { TimelineLayout } from "../../../dashboards/assets/timeline/layout.js";
import { fitting } from "../../../dashboards/assets/timeline/painter.js";
import { sharesText } from "../../../dashboards/assets/timeline/lists.js";
import { partAt, pathOf } from "../../../dashboards/assets/timeline/path.js";
import { stripTexts } from "../../../dashboards/assets/timeline/strips.js";

const part = (start, length, more) => ({ rank: 0, kind: "compute", name: "k", start, length, row: "0.1", ...more });
const REPLY = {
  state: "known", step: "3", rank: 1, length: "100", num_parts: 3, kinds: { compute: "70", host: "30" },
  parts: [part("1000", 40), part("1040", 30, { kind: "host", row: null }), part("1070", 30)],
};

test("times count from the page's base", () => {
  const path = pathOf(REPLY, (time) => Number(time) - 1000);
  assert.deepEqual(path.parts.map(({ begin }) => begin), [0, 40, 70]);
  assert.equal(path.length, 100);
  assert.equal(sharesText(path), "compute 70.0 %, host 30.0 %");
});

test("the part at a time, none outside", () => {
  const { parts } = pathOf(REPLY, Number);
  assert.equal(partAt(parts, 1039), parts[0]);
  assert.equal(partAt(parts, 1040), parts[1]);
  assert.equal(partAt(parts, 1100), undefined);
  assert.equal(partAt([], 5), undefined);
});

test("it has a row of its own on top", () => {
  const layout = new TimelineLayout([0], {}, false);
  layout.hasPath = true;
  layout.place(new Set(), new Map());
  assert.deepEqual([layout.rows[0].type, layout.rows[0].pinned], ["path", true]);
});

const measure = (text) => 10 * text.length;

test("of a numbered step at least the number is written", () => {
  assert.equal(fitting("step 12", 70, measure), "step 12");
  assert.equal(fitting("step 12", 40, measure), "12");
  assert.equal(fitting("ProfilerStep#7", 10, measure), "7");
  assert.equal(fitting("step 12", 15, measure), "");
  assert.equal(fitting("cudaMemcpyAsync", 60, measure), "cudaM…");
});

test("folded ranks are described as far as their strips are there", () => {
  const strips = new Map([[1, { shares: { compute: [500, 700] } }]]);
  const rows = [{ number: 1, label: "rank 1" }, { number: 2, label: "rank 2" }];
  assert.deepEqual(stripTexts(rows, strips), ["rank 1: compute 60 %"]);
});
