import assert from "node:assert/strict";
import test from "node:test";
import { chosenIn, stepLabel } from "../../../dashboards/assets/compare/side.js";
import { LinkedTimelines } from "../../../dashboards/assets/timeline/linked.js";

const SIDE = { rank: 1, step: 4, ranks: [{ number: 0 }, { number: 1 }] };

test("an address chooses a rank and a step, else the side proposes them", () => {
  assert.deepEqual(chosenIn("0.12", SIDE), { rank: 0, step: 12 });
  assert.deepEqual(chosenIn("0", SIDE), { rank: 0, step: null });
  for (const text of [null, "7.1"]) {
    assert.deepEqual(chosenIn(text, SIDE), { rank: 1, step: 4 });
  }
});

test("a step is called by its number and its length", () => {
  assert.equal(stepLabel({ number: 3, start: "0", length: 4_030_000 }), "step 3 · 4.03 ms");
  assert.equal(stepLabel({ number: null, start: "0", length: 2e9 }), "the training · 2 s");
});

function timeline(start, end) {
  const seen = [];
  return {
    opened: new Set([0]), data: { ranks: new Map([[0, { start, end }]]) }, seen,
    root: new EventTarget(), pointer: { x: null }, refresh: () => {}, follow: (view) => seen.push(view),
  };
}

test("what moves one of them moves the others", () => {
  const linked = new LinkedTimelines();
  const [first, second] = [timeline(-10, 50), timeline(-30, 20)];
  for (const one of [first, second]) linked.add(one);
  assert.deepEqual(linked.extent(), { start: -30, end: 50 });
  linked.moved(second, { start: 1, span: 5 });
  assert.deepEqual([first.seen, second.seen], [[{ start: 1, span: 5 }], []]);
  linked.pointed(first, 300);
  assert.deepEqual([first.pointer.x, second.pointer.x], [null, 300]);
});

test("keys are for the one that was pointed at last", () => {
  const linked = new LinkedTimelines();
  const [first, second] = [timeline(0, 1), timeline(0, 1)];
  for (const one of [first, second]) linked.add(one);
  assert.equal(linked.active, first);
  second.root.dispatchEvent(new Event("pointerenter"));
  assert.equal(linked.active, second);
  linked.remove(second);
  assert.equal(linked.active, null);
});
