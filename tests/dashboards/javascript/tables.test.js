import assert from "node:assert/strict";
import test from "node:test";
import { saved } from "../../../dashboards/assets/tables.js";

test("text that a spreadsheet would take for a formula is marked as text", () => {
  for (const text of ["=1+1", "+1", "-1", "@a", "\tx", "＝1"]) {
    assert.equal(saved({ value: text }), `'${text}`);
  }
  assert.equal(saved({ value: "a=1" }), "a=1");
});

test("numbers are numbers to a spreadsheet, negative ones too, and unknown ones are nothing", () => {
  assert.equal(saved({ value: 4825.125 }), 4825.125);
  assert.equal(saved({ value: -1 }), -1);
  assert.equal(saved({ value: 0 }), 0);
  assert.equal(saved({ value: null }), "");
  assert.equal(saved({}), "");
});
