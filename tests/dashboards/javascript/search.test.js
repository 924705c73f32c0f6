import assert from "node:assert/strict";
import test from "node:test";
import { csvOf } from "../../../dashboards/assets/timeline/search.js";

test("a list is saved with all digits, and names as text", () => {
  const start = "1726722437796624059"; // beyond what numbers hold
  const event = { id: "3.op.7", name: '=a, "b"', duration: 1500, rank: 3, step: null, bytes: 67_108_864, start, place: null };
  const [head, row] = csvOf({ count: 1, is_all: true, events: [event] }).split("\r\n");
  assert.equal(head, "name,duration (ns),rank,step,size (bytes),start (ns),place,id");
  assert.equal(row, `"'=a, ""b""",1500,3,,67108864,${start},,3.op.7`);
});
