import assert from "node:assert/strict";
import test from "node:test";
import { AXIS, GUTTER, FLAGS, flagAt, flagSpan, rowAt, timeAt, xOf } from "../../../dashboards/assets/timeline/geometry.js";

const VIEW = { start: 1000, span: 400 };
const x = (time) => xOf(time, VIEW, 800);

test("a view fills what is right of the names", () => {
  assert.equal(x(1000), GUTTER);
  assert.equal(x(1400), GUTTER + 800);
});

test("places and times are each other's inverse", () => {
  for (const time of [1000, 1001, 1234.5, 1399]) {
    assert.ok(Math.abs(timeAt(x(time), VIEW, 800) - time) < 1e-9);
  }
});

test("a row reaches from its top to the top of the next one", () => {
  const rows = [{ top: 46, height: 20, name: "a" }, { top: 66, height: 20, name: "b" }];
  assert.equal(rowAt(rows, 46).name, "a");
  assert.equal(rowAt(rows, 65.9).name, "a");
  assert.equal(rowAt(rows, 66).name, "b");
  assert.equal(rowAt(rows, 86), undefined);
});

test("flags are wide enough to be seen, and leave a gap", () => {
  assert.deepEqual(flagSpan({ start: 1000, end: 1001 }, x), { left: GUTTER, width: 5 });
  assert.deepEqual(flagSpan({ start: 1000, end: 1100 }, x), { left: GUTTER, width: 199 });
});

test("a flag is hit on it and two pixels beside it, on the axis only", () => {
  const flags = [{ start: 1100, end: 1200, name: "first" }, { start: 1150, end: 1300 }];
  const [left, right] = [x(1100), x(1200)];
  const y = AXIS - FLAGS;
  assert.equal(flagAt(flags, x, left - 2, y).name, "first");
  assert.equal(flagAt(flags, x, right + 2, AXIS - 1).name, "first");
  assert.equal(flagAt(flags, x, left - 2.1, y), null);
  assert.equal(flagAt(flags, x, left, y - 1), null);
  assert.equal(flagAt(flags, x, left, AXIS), null);
});
