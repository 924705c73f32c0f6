import assert from "node:assert/strict";
import test from "node:test";
import { isFreshStrip, stripText } from "../../../dashboards/assets/timeline/strips.js";
import { memberText } from "../../../dashboards/assets/timeline/lists.js";

test("a strip is fresh for its own view only", () => {
  const strip = { start: 5, span: 10, shares: {} };
  assert.ok(isFreshStrip(strip, { start: 5, span: 10 }));
  assert.ok(!isFreshStrip(strip, { start: 6, span: 10 }));
  assert.ok(!isFreshStrip(undefined, { start: 5, span: 10 }));
});

test("a strip says how much of its view each kind took", () => {
  assert.equal(stripText({ shares: { compute: [1000, 0], copy: [10, 30] } }), "compute 50 %, copy 2 %");
  assert.equal(stripText({ shares: {} }), "idle");
});

test("a member waited, came last, or it is not known", () => {
  const members = [{ rank: 0, wait: "2500" }, { rank: 1, wait: "0" }, { rank: 2, wait: null }];
  const texts = members.map((_, index) => memberText({ last: 1, members }, index));
  assert.equal(texts[0], "waited 2.50 µs");
  assert.equal(texts[1], "came last");
  assert.match(texts[2], /not known/);
});
