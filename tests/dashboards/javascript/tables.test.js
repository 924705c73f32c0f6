import assert from "node:assert/strict";
import test from "node:test";
import { saved } from "../../../dashboards/assets/tables.js";

const formatValue = (value) => `<${value}>`;

test("text that a spreadsheet would take for a formula is marked as text", () => {
  for (const text of ["=1+1", "+1", "-1", "@a", "\tx", "＝1"]) {
    assert.equal(saved({ value: text, formatValue }), `'${text}`);
  }
  assert.equal(saved({ value: "a=1", formatValue }), "a=1");
});
