import assert from "node:assert/strict";
import test from "node:test";
import { TimelineLayout } from "../../../dashboards/assets/timeline/layout.js";

const track = (row, group, source, more = {}) => ({ row, group, source, label: row, events: 10, ...more });
const RANK = {
  state: "ready", host: true,
  rows: [
    track("0.0", "thread 1", "call"), track("0.1", "thread 1", "range"),
    track("0.2", "GPU", "op"), track("0.3", "", "step"),
  ],
};
const LABELS = { 0: "rank 0", 1: "rank 1" };
function kindsOf(rank) {
  const layout = new TimelineLayout([3], LABELS, false);
  layout.place(new Set([3]), new Map(rank ? [[3, rank]] : []));
  return kinds(layout);
}
const kinds = (layout) => layout.rows.map(({ type, label }) => `${type} ${label}`);

test("one rank has no row of its own; rows stand below each other", () => {
  const layout = new TimelineLayout([0], LABELS, false);
  const height = layout.place(new Set([0]), new Map([[0, RANK]]));
  assert.deepEqual(kinds(layout), [
    "group thread 1", "track 0.0", "track 0.1", "group GPU", "track 0.2", "track 0.3"]);
  const { rows } = layout;
  for (let index = 1; index < rows.length; index += 1) {
    assert.ok(rows[index].y >= rows[index - 1].y + rows[index - 1].height);
  }
  const last = rows.at(-1);
  assert.equal(height, last.y + last.height + 2);
});

test("several ranks have rows, and those that are not open are folded", () => {
  const layout = new TimelineLayout([0, 1], LABELS, false);
  layout.place(new Set([0]), new Map([[0, RANK]]));
  const ranks = layout.rows.filter((row) => row.type === "rank");
  assert.deepEqual(ranks.map((row) => [row.label, row.folded]), [["rank 0", false], ["rank 1", true]]);
});

test("where ranks are compared, what the host did is folded at first", () => {
  const layout = new TimelineLayout([0], LABELS, true);
  layout.place(new Set([0]), new Map([[0, RANK]]));
  assert.deepEqual(kinds(layout), ["group thread 1", "group GPU", "track 0.2", "track 0.3"]);
  assert.equal(layout.rows[0].note, "20 events");
});

test("folding a group hides its tracks, and again shows them", () => {
  const layout = new TimelineLayout([0], LABELS, false);
  const place = () => layout.place(new Set([0]), new Map([[0, RANK]]));
  place();
  layout.fold(layout.rows[0]);
  place();
  assert.equal(layout.rowOf("0.1").type, "group");
  assert.equal(layout.rowOf("0.2").type, "track");
  layout.fold(layout.rows[0]);
  place();
  assert.equal(layout.rowOf("0.1").type, "track");
  assert.equal(layout.rowOf("9.9"), undefined);
});

test("a rank that is not there yet, failed or is empty says so", () => {
  assert.deepEqual(kindsOf(null), ["message Reading the rows of rank 3 …"]);
  assert.deepEqual(kindsOf({ state: "failed", error: "it is gone", rows: [] }), ["message it is gone"]);
  assert.deepEqual(kindsOf({ state: "ready", host: true, rows: [] }),
    ["message This report holds no event of this rank."]);
});

test("hidden rows are not placed, pinned ones stand on top, too", () => {
  const layout = new TimelineLayout([0], LABELS, false);
  const place = () => layout.place(new Set([0]), new Map([[0, RANK]]));
  layout.arrangement.hidden.add("0.0");
  layout.arrangement.pin("0.1");
  place();
  assert.deepEqual(kinds(layout), [
    "track 0.1", "group thread 1", "track 0.1", "group GPU", "track 0.2", "track 0.3"]);
  assert.deepEqual(layout.rows.map(({ pinned }) => Boolean(pinned)), [true, false, false, false, false, false]);
  layout.arrangement.pin("0.1");
  place();
  assert.equal(layout.rows[0].type, "group");
});
