import assert from "node:assert/strict";
import test from "node:test";
import { shades, shadesByKind } from "../../../dashboards/assets/timeline/colors.js";
import { fitting } from "../../../dashboards/assets/timeline/painter.js";

const measure = (text) => text.length * 10;

test("shades go from the colour to white", () => {
  assert.deepEqual(shades("#009E73", [0, 0.5, 1]),
    ["rgb(0 158 115)", "rgb(128 207 185)", "rgb(255 255 255)"]);
});

test("kinds have three shades each, communication lighter by less, since it is hatched", () => {
  const { compute, communication } = shadesByKind({ compute: "#000000", communication: "#000000" });
  assert.deepEqual(compute, ["rgb(0 0 0)", "rgb(56 56 56)", "rgb(107 107 107)"]);
  assert.deepEqual(communication, ["rgb(0 0 0)", "rgb(31 31 31)", "rgb(61 61 61)"]);
});

test("a text is cut to its room, and left out where two letters are all that fits", () => {
  assert.equal(fitting("kernel", 60, measure), "kernel");
  assert.equal(fitting("kernel", 59, measure), "kerne…");
  assert.equal(fitting("kernel", 40, measure), "ker…");
  assert.equal(fitting("kernel", 38, measure), "");
});
