import assert from "node:assert/strict";
import test from "node:test";
import {
  ViewHistory, bringingIn, clamped, extentOf, framed, holds, panned, zoomed,
} from "../../../dashboards/assets/timeline/view.js";

const EXTENT = { start: 0, end: 1_000_000 };

test("a view is at most as wide as the extent, and at least 10 ns", () => {
  assert.deepEqual(clamped({ start: 70, span: 1e9 }, EXTENT), { start: 0, span: 1_000_000 });
  assert.equal(clamped({ start: 5, span: 1 }, EXTENT).span, 10);
  assert.deepEqual(clamped({ start: 100, span: 1000 }, EXTENT), { start: 100, span: 1000 });
});

test("a view stops at the ends of the extent", () => {
  assert.equal(clamped({ start: -1e9, span: 1000 }, EXTENT).start, 0);
  assert.equal(clamped({ start: 1e9, span: 1000 }, EXTENT).start, 999_000);
  const short = { start: 40, end: 50 };
  assert.deepEqual(clamped({ start: 0, span: 10 }, short), { start: 40, span: 10 });
});

test("an extent shorter than the view stands in its middle", () => {
  assert.deepEqual(clamped({ start: 0, span: 5e9 }, { start: 7, end: 7 }), { start: -493, span: 1000 });
  assert.deepEqual(clamped({ start: 30, span: 500 }, { start: 0, end: 100 }), { start: -200, span: 500 });
});

test("zooming keeps the time under the pointer where it is", () => {
  const view = { start: 1000, span: 4000 };
  for (const factor of [0.5, 2, 0.1]) {
    const after = zoomed(view, factor, 2000, EXTENT);
    assert.equal(after.span, 4000 * factor);
    assert.ok(Math.abs((2000 - after.start) / after.span - 0.25) < 1e-12);
  }
});

test("zooming as far as it goes moves nothing either", () => {
  const view = { start: 1000, span: 10 };
  assert.deepEqual(zoomed(view, 0.5, 1004, EXTENT), view);
});

test("panning moves by a share", () => {
  assert.deepEqual(panned({ start: 100, span: 40 }, -0.25), { start: 90, span: 40 });
});

test("a framed interval stands in the middle", () => {
  assert.deepEqual(framed(100, 160), { start: 80, span: 100 });
  assert.deepEqual(framed(100, 150, 0.5), { start: 75, span: 100 });
  assert.equal(framed(7, 7, 1).span, 10);
});

test("an interval in sight is left there, another one is brought in", () => {
  const view = { start: 0, span: 1000 };
  assert.equal(bringingIn(view, { start: 100, end: 200 }, 500), null);
  assert.deepEqual(bringingIn(view, { start: 2000, end: 2100 }, 500), { start: 1550, span: 1000 });
  assert.deepEqual(bringingIn(view, { start: 950, end: 1050 }, 500), { start: 500, span: 1000 });
});

test("what is too narrow or too wide to be seen changes the width", () => {
  const view = { start: 0, span: 1e6 };
  assert.equal(bringingIn(view, { start: 100, end: 140 }, 500).span, 1000);
  assert.equal(bringingIn(view, { start: 0, end: 2e6 }, 500).span, 5e7);
});

test("a view holds what is wholly inside", () => {
  const view = { start: 10, span: 10 };
  assert.ok(holds(view, { start: 10, end: 20 }));
  assert.ok(!holds(view, { start: 9, end: 20 }));
  assert.ok(!holds(view, { start: 10, end: 21 }));
});

test("the extent is that of all ranks that have one", () => {
  assert.deepEqual(extentOf([{ start: 5, end: 9 }, undefined, { state: "failed" }, { start: 2, end: 7 }]),
    { start: 2, end: 9 });
  assert.deepEqual(extentOf([]), { start: 0, end: 1e9 });
});

const view = (start) => ({ start, span: 1 });

test("views that are left come back, and a movement is one of them", () => {
  const views = new ViewHistory();
  views.note(view(0), 0, false);
  views.note(view(1), 100, false); // of the same movement
  views.note(view(2), 2000, false);
  views.note(view(3), 2010, true);
  assert.deepEqual([views.back(), views.back(), views.back(), views.back()],
    [view(3), view(2), view(0), undefined]);
});
