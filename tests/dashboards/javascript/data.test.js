import assert from "node:assert/strict";
import test from "node:test";
import { TimelineData } from "../../../dashboards/assets/timeline/data.js";

const VIEW = { start: 0, span: 100 };
const settled = () => new Promise((resolve) => { setImmediate(resolve); });

test("a server that is gone is asked again after a while only", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const fetch = context.mock.method(globalThis, "fetch", () => Promise.reject(new Error("gone")));
  const data = new TimelineData(0n, () => {});
  for (const _ of [1, 2, 3]) {
    data.show(["0.0"], VIEW, 100);
    await settled();
  }
  assert.equal(fetch.mock.callCount(), 1);
  assert.equal(data.failure, "gone");
  context.mock.timers.tick(10_000);
  data.show(["0.0"], VIEW, 100);
  await settled();
  assert.equal(fetch.mock.callCount(), 2);
});
