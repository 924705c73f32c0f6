import assert from "node:assert/strict";
import test from "node:test";
import { decoded, isFresh, requestFor, shownAt } from "../../../dashboards/assets/timeline/tiles.js";

const VIEW = { start: 1000, span: 400 };

// Ten columns of 60 ns from 900 on: blocks in the columns 1, 2 and 7, events at 1200 and 1260.
const REPLY = {
  columns: 10, column: [1, 1, 5], share: [500, 1000, 10], count: [3, 4, 1],
  begin: [300, 360], length: [60, 100], name: [0, 1], event: [17, 23], names: { 0: "a" },
};
const tile = () => decoded(REPLY, { start: 900, end: 1500 }, VIEW, 400);

test("more than the view is asked for, in columns as wide as its own", () => {
  const request = requestFor(VIEW, 800);
  assert.deepEqual(request, { start: 900, end: 1500, columns: 1200 });
  assert.equal((request.end - request.start) / request.columns, VIEW.span / 800);
});

test("times between nanoseconds are asked for whole", () => {
  assert.deepEqual(requestFor({ start: 10.5, span: 10 }, 8), { start: 8, end: 23, columns: 12 });
});

test("columns are counted from one another in replies, and from the start in tiles", () => {
  assert.deepEqual(tile().column, [1, 2, 7]);
  assert.deepEqual(REPLY.column, [1, 1, 5]);
  assert.equal(tile().span, 600);
});

test("a tile is fresh for the view it was asked for, and for a little more", () => {
  assert.ok(isFresh(tile(), VIEW, 400));
  assert.ok(isFresh(tile(), { start: 1060, span: 400 }, 400));
  assert.ok(!isFresh(tile(), { start: 1061, span: 400 }, 400));
  assert.ok(isFresh(tile(), { start: 940, span: 400 }, 400));
  assert.ok(!isFresh(tile(), { start: 939, span: 400 }, 400));
  assert.ok(!isFresh(tile(), { start: 1000, span: 401 }, 400));
  assert.ok(!isFresh(tile(), VIEW, 401));
  assert.ok(!isFresh(undefined, VIEW, 400));
});

test("the event that runs at a time is what is shown there", () => {
  assert.deepEqual(shownAt(tile(), 1200, 0), { start: 1200, end: 1260, event: 17 });
  assert.deepEqual(shownAt(tile(), 1330, 0), { start: 1260, end: 1360, event: 23 });
});

test("of two events that touch the later one is meant", () => {
  assert.equal(shownAt(tile(), 1260, 0).event, 23);
});

test("an event near by is found within so many nanoseconds", () => {
  assert.equal(shownAt(tile(), 1190, 9), null);
  assert.equal(shownAt(tile(), 1190, 10).event, 17);
  assert.equal(shownAt(tile(), 1470, 100), null);
});

test("a block is shown in its column, with its share", () => {
  assert.deepEqual(shownAt(tile(), 960, 0), { start: 960, end: 1020, share: 500 });
  assert.deepEqual(shownAt(tile(), 1079, 0), { start: 1020, end: 1080, share: 1000 });
  assert.equal(shownAt(tile(), 959, 0), null);
});

test("an event that runs comes before a block, a block before an event near by", () => {
  assert.equal(shownAt(tile(), 1320, 0).event, 23); // column 7 has a block, too
  assert.equal(shownAt(tile(), 1365, 50).share, 10);
});
