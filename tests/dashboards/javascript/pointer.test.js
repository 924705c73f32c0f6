import assert from "node:assert/strict";
import test from "node:test";
import { blockLines, eventLines } from "../../../dashboards/assets/timeline/pointer.js";

test("the tooltip of an event names it, says how long it took and where, and at most nine facts", () => {
  const facts = Array.from({ length: 12 }, (_, index) => [`fact ${index}`, "value"]);
  const lines = eventLines({ label: "gemm", length: 1500, group: "GPU", facts });
  assert.deepEqual(lines.slice(0, 3), ["gemm", "1.50 µs · GPU", "fact 0: value"]);
  assert.equal(lines.length, 2 + 9);
  assert.equal(eventLines({ label: "a", length: 5, group: "", facts: [] })[1], "5 ns");
});

test("the tooltip of a block says how many events it stands for and which take most time", () => {
  const names = [{ name: "gemm", count: 1200, total: "5000" }];
  assert.deepEqual(blockLines({ start: 0, end: 2000, share: 755 }, { count: 1300, names }),
    ["1\u2009300 events in 2 µs, 75.5 % covered", "1\u2009200 × gemm, 5 µs"]);
  assert.match(blockLines({ start: 0, end: 2000, share: 1 }, { count: 1, names: [] })[0], /^1 event in/);
});
