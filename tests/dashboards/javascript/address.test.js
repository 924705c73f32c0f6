import assert from "node:assert/strict";
import test from "node:test";
import { chosenNumbers, parameter, shownTime, timelineAt, withAssumptions, withChoice, withRanks, withSteps, withTime, withTimeline } from "../../../dashboards/assets/address.js";

const HERE = "http://127.0.0.1:8000/steps?rank=0,3&start=100&end=200&finding=gpu-idle&evidence=2";

test("another choice keeps the page and what it shows, but for evidence", () => {
  assert.equal(withChoice(HERE, [], [1, 2]), "/steps?rank=1,2&start=100&end=200");
  assert.equal(withChoice(HERE, [4], [0, 3]), "/steps?rank=0,3&start=100&end=200&report=4");
  assert.equal(withChoice(HERE, null, []), "/steps?start=100&end=200");
});

test("other ranks of the same reports", () => {
  assert.equal(withRanks(HERE, [1, 2]), withChoice(HERE, null, [1, 2]));
  assert.equal(withRanks("http://x/ranks?report=0,2&start=1&end=2", [5, 6]), "/ranks?report=0,2&start=1&end=2&rank=5,6");
});

test("the same choice changes nothing", () => {
  assert.equal(withChoice(HERE, [], [0, 3]), null);
  assert.equal(withChoice(HERE, undefined, [0, 3]), null);
  assert.equal(withChoice("http://127.0.0.1:8000/", null, null), null);
});

test("the timeline writes what it shows, and nothing of what it does not", () => {
  const shown = { start: 5n, end: 9n, select: "0.op.5", finding: null, evidence: null, search: "a&b" };
  assert.equal(withTimeline("http://x/timeline?rank=0,1&finding=gpu-idle&evidence=0", shown),
    "/timeline?rank=0,1&scope=rank%3D0,1&start=5&end=9&select=0.op.5&search=a%26b");
  assert.equal(withTimeline("http://x/timeline", { evidence: 0 }), "/timeline?scope=&evidence=0");
});

test("moving the timeline changes nothing of what is chosen", () => {
  const moved = withTimeline("http://x/timeline?rank=0,1&start=5", { start: 7n, end: 9n });
  assert.equal(moved, "/timeline?rank=0,1&start=7&scope=rank%3D0,1%26start%3D5&end=9");
  assert.equal(withTimeline(`http://x${moved}`, { start: 8n }),
    "/timeline?rank=0,1&start=8&scope=rank%3D0,1%26start%3D5&end=9");
});

test("a movement that is noted late is not noted on another page", () => {
  assert.equal(withTimeline("http://x/steps?rank=0", { start: 7n }), "/steps?rank=0");
});

test("a choice of ranks on the timeline is a choice for all pages", () => {
  const there = "http://x/timeline?rank=3&start=5&end=6&scope=rank%3D0%26start%3D1&finding=gpu-idle";
  assert.equal(withChoice(there, [], [0]), null);
  assert.equal(withChoice(there, [], [1, 2]),
    "/timeline?rank=1,2&start=5&end=6&scope=rank%3D1,2%26start%3D1");
  assert.equal(withChoice(there, [], []), "/timeline?start=5&end=6&scope=start%3D1");
});

test("the time in view can be chosen for all pages, and let go of", () => {
  const there = "http://x/timeline?rank=3&start=5&end=6&scope=rank%3D0";
  assert.deepEqual(shownTime(there), { start: "5", end: "6" });
  assert.equal(shownTime("http://x/timeline"), null);
  const chosen = withTime(there, "5", "6");
  assert.equal(chosen, "/timeline?rank=3&start=5&end=6&scope=rank%3D0%26start%3D5%26end%3D6");
  assert.equal(withTime(`http://x${chosen}`, null, null), "/timeline?rank=3&scope=rank%3D0");
  assert.equal(withTime("http://x/links?start=1&end=2", null, null), "/links");
});

test("what is assumed is in the address", () => {
  const here = "http://x/what-if?rank=1&assume=no-sync";
  assert.equal(withAssumptions(here, ["no-sync"], "link=4x; "), "/what-if?rank=1&assume=no-sync%3Blink%3D4x");
  assert.equal(withAssumptions(here, [], null), "/what-if?rank=1");
});

test("the steps that are compared stand in the address of their page only", () => {
  const here = "http://127.0.0.1:8000/compare?rank=0&before=1.2";
  assert.equal(withSteps(here, { before: "0.7", after: "3" }), "/compare?rank=0&before=0.7&after=3");
  assert.equal(withSteps(HERE, { before: "0.7" }), HERE.replace("http://127.0.0.1:8000", ""));
});

test("what is chosen is read from the address, or from its scope", () => {
  assert.deepEqual(chosenNumbers(HERE, "rank"), [0, 3]);
  assert.deepEqual(chosenNumbers("http://x/timeline?rank=7&scope=rank%3D1,2%26report%3D0", "rank"), [1, 2]);
  assert.deepEqual(chosenNumbers("http://x/timeline?rank=7&scope=", "rank"), []);
});

test("a parameter is text as it was written", () => {
  assert.equal(parameter("http://x/timeline?search=a%26b", "search"), "a&b");
  assert.equal(parameter("http://x/timeline", "search"), null);
});

test("a step leads to its time on the timeline, for a reader who chose nothing", () => {
  assert.equal(timelineAt(3, "-5", 9n), "/timeline?rank=3&start=-5&end=9&scope=");
});
