import assert from "node:assert/strict";
import test from "node:test";
import { isFreshStrip, stripText } from "../../../dashboards/assets/timeline/strips.js";

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
