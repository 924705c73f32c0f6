import assert from "node:assert/strict";
import test from "node:test";

import { markAt, marksOf } from "../../../dashboards/assets/timeline/note_marks.js";

const NOTES = [
  { href: "/timeline?rank=3&start=100&end=300", text: "slow", where: "Timeline · rank 3" },
  { href: "/steps?start=100&end=300", text: "another page", where: "Steps" },
  { href: "/timeline?rank=1", text: "all of the time", where: "Timeline · rank 1" },
  { href: "/timeline?start=190&end=214", text: "", where: "Timeline" },
];
const marks = marksOf(NOTES, (time) => Number(time) - 100);

test("a note on a view of the timeline is a mark in its middle", () => {
  assert.deepEqual(marks.map(({ at, lines }) => [at, ...lines]),
    [[100, "slow", "Timeline · rank 3"], [102, "bookmark", "Timeline"]]);
  assert.equal(marks[0].href, NOTES[0].href);
});

const x = (time) => 230 + time;

test("the pointer finds the latest mark at its place, above the flags of findings", () => {
  assert.equal(markAt(marks, x, 328, 10).lines[0], "slow");
  assert.equal(markAt(marks, x, 331, 10).lines[0], "bookmark");
  assert.equal(markAt(marks, x, 344, 10), null);
  assert.equal(markAt(marks, x, 331, 40), null);
});
