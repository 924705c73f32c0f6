import assert from "node:assert/strict";
import { test } from "node:test";
import { changesText } from "../../../dashboards/assets/files.js";

const changes = (what, ...names) => names.map((name) => ({ name, what }));

test("what became of files is said once for all of a kind", () => {
  assert.equal(changesText(changes("replaced", "a")), "a was replaced");
  assert.equal(changesText([...changes("no longer there", "a", "b"), ...changes("changed", "c")]),
    "a and b are no longer there; c was changed");
  assert.equal(changesText(changes("replaced", "a", "b", "c", "d", "e")), "a, b, c and 2 more were replaced");
});
