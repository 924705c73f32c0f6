import assert from "node:assert/strict";
import test from "node:test";
import { Arrangement, movedTo } from "../../../dashboards/assets/timeline/arrangement.js";

const track = (row, group) => ({ row, group });
const TRACKS = [track("0.0", ""), track("0.1", "GPU"), track("0.2", "GPU"), track("0.3", "GPU"),
  track("0.4", "thread")];
const order = (arrangement) => arrangement.ordered(TRACKS).map(({ row }) => row);

test("an entry stands where another one stood, within the list", () => {
  assert.deepEqual(movedTo(["a", "b", "c"], "a", 2), ["b", "c", "a"]);
  assert.deepEqual(movedTo(["a", "b", "c"], "c", 0), ["c", "a", "b"]);
  assert.deepEqual(movedTo(["a", "b"], "b", 9), ["a", "b"]);
  assert.deepEqual(movedTo(["a", "b"], "a", -9), ["a", "b"]);
});

test("a row moves among those of its group only", () => {
  const arrangement = new Arrangement();
  assert.ok(arrangement.move("0.1", 1, TRACKS));
  assert.deepEqual(order(arrangement), ["0.0", "0.2", "0.1", "0.3", "0.4"]);
  assert.ok(arrangement.move("0.3", -2, TRACKS));
  assert.deepEqual(order(arrangement), ["0.0", "0.3", "0.2", "0.1", "0.4"]);
  assert.ok(!arrangement.move("0.1", 1, TRACKS));
  assert.ok(!arrangement.move("0.4", 1, TRACKS));
  assert.ok(!arrangement.move("0.9", 1, TRACKS));
});

test("a row moves past those that are hidden", () => {
  const arrangement = new Arrangement();
  arrangement.hidden.add("0.2");
  assert.ok(arrangement.move("0.1", 1, TRACKS));
  assert.deepEqual(order(arrangement), ["0.0", "0.2", "0.3", "0.1", "0.4"]);
});

test("pinned rows move among each other", () => {
  const arrangement = new Arrangement();
  assert.ok(arrangement.pin("0.1"));
  assert.ok(arrangement.pin("0.4"));
  assert.ok(arrangement.move("0.4", -1, TRACKS));
  assert.deepEqual(arrangement.pinned, ["0.4", "0.1"]);
  assert.ok(!arrangement.move("0.4", -1, TRACKS));
  assert.ok(!arrangement.pin("0.4"));
  assert.deepEqual(arrangement.pinned, ["0.1"]);
});

test("what the address says comes back, and nothing else", () => {
  const before = new Arrangement();
  before.pin("0.4");
  before.hidden.add("0.2");
  before.move("0.1", 2, TRACKS);
  const said = before.parameters;
  const after = new Arrangement();
  assert.equal(after.restore((name) => said[name]), 1);
  assert.deepEqual(after.parameters, said);
  assert.deepEqual(order(after), order(before));
  after.restore(() => null);
  assert.deepEqual(after.parameters, { pinned: null, hidden: null, moved: null });
});
