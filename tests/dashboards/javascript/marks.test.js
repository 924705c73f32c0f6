import assert from "node:assert/strict";
import test from "node:test";
import { symbolsOf } from "../../../dashboards/assets/timeline/marks.js";
import { bringingIn } from "../../../dashboards/assets/timeline/view.js";

test("a mark stands alone with its name, several with their number, in order of time", () => {
  const tile = {
    start: 100, span: 100, columns: 10, begin: [5, 95], name: [2, 3], names: { 2: "saved" },
    column: [4], count: [3],
  };
  assert.deepEqual(symbolsOf(tile), [
    { time: 105, text: "saved", count: 1 }, { time: 145, text: "3 marks", count: 3 },
    { time: 195, text: "", count: 1 }]);
});

test("a moment is brought into sight without zooming", () => {
  const view = { start: 0, span: 1000 };
  assert.equal(bringingIn(view, { start: 500, end: 500 }, 800), null);
  assert.deepEqual(bringingIn(view, { start: 5000, end: 5000 }, 800), { start: 4500, span: 1000 });
});
