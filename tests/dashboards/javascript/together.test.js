import assert from "node:assert/strict";
import test from "node:test";
import { memberText } from "../../../dashboards/assets/timeline/lists.js";
import { rowsOfMembers } from "../../../dashboards/assets/timeline/together.js";

const member = (rank, wait, isLast = false) => ({ rank, row: `${rank}.4`, wait, isLast });

test("of many ranks the last and those that waited longest are put below each other", () => {
  const members = [member(0, "10"), member(1, "500"), member(2, "0", true), member(3, "300")];
  assert.deepEqual(rowsOfMembers(members, 9), ["0.4", "1.4", "2.4", "3.4"]);
  assert.deepEqual(rowsOfMembers(members, 3), ["1.4", "2.4", "3.4"]);
  assert.deepEqual(rowsOfMembers([{ ...member(5, null), row: null }], 3), []);
});

test("a member says how long it waited, where that is known", () => {
  const members = [member(0, "1500"), member(1, "0", true), member(2, null)];
  assert.deepEqual([0, 1].map((index) => memberText({ last: 1, members }, index)), ["waited 1.50 µs", "came last"]);
  assert.match(memberText({ last: null, members }, 2), /not known/);
});
