import assert from "node:assert/strict";
import test from "node:test";
import { duration, exactly, fromZero, grouped, seconds, sizeText, tickStep, ticks, ticksFromZero } from "../../../dashboards/assets/timeline/time.js";

const spaced = (text) => text.replaceAll("\u2009", " ");

test("durations have three digits and their unit", () => {
  const written = {
    0: "0 ns", 1: "1 ns", 999: "999 ns", 1000: "1 µs", 1234: "1.23 µs", 9994: "9.99 µs",
    9995: "10.0 µs", 99_949: "99.9 µs", 99_950: "100 µs", 999_499: "999 µs", 999_500: "1.00 ms", 1_593_948: "1.59 ms", 2e9: "2 s",
    999_999_999: "1.00 s", 12_345_678_901: "12.3 s",
  };
  for (const [ns, text] of Object.entries(written)) assert.equal(duration(Number(ns)), text);
  assert.equal(duration(-1234), "-1.23 µs");
});

test("sizes have three digits and their unit, as on the other pages", () => {
  const written = { 0: "0 B", 4: "4 B", 999: "999 B", 1000: "1 kB", 67_108_864: "67.1 MB", 184_549_376: "185 MB",
    999_600_000: "1 GB", 12_345_678_901: "12.3 GB", 1_234_567_890_123: "1235 GB" };
  for (const [bytes, text] of Object.entries(written)) assert.equal(sizeText(Number(bytes)), text);
});

test("rounded durations say their nanoseconds", () => {
  assert.equal(exactly(999), "999 ns");
  assert.equal(spaced(exactly(1_593_948)), "1.59 ms (1 593 948 ns)");
});

test("digits are grouped by three", () => {
  assert.equal(spaced(grouped(12_345_678)), "12 345 678");
  assert.equal(grouped(123), "123");
});

test("times are written to the nanosecond, or to fewer decimals", () => {
  assert.equal(spaced(seconds(1_593_948_425)), "1.593 948 425 s");
  assert.equal(spaced(seconds(-1)), "−0.000 000 001 s");
  assert.equal(spaced(seconds(1234e9 + 5e8, 1)), "1 234.5 s");
  assert.equal(seconds(3e9, 0), "3 s");
  assert.equal(seconds(-0.2, 0), "0 s");
});

test("ticks are 1, 2 or 5 times a power of ten apart", () => {
  for (const [minimum, step] of [[0.3, 0.5], [1, 1], [1.5, 2], [3, 5], [6, 10], [20, 20], [21, 50]]) {
    assert.equal(tickStep(minimum), step);
  }
});

test("ticks stand inside of the view, at whole steps", () => {
  const { list, anchor } = ticks(1.1e9, 1e9, 1e8);
  assert.equal(anchor, null);
  assert.deepEqual(list.map(({ at }) => at), [1.1e9, 1.2e9, 1.3e9, 1.4e9, 1.5e9, 1.6e9, 1.7e9,
    1.8e9, 1.9e9, 2e9, 2.1e9]);
  assert.equal(list[1].label, "1.2 s");
});

test("where a time would need too many digits, ticks count from an anchor", () => {
  const { list, anchor } = ticks(1_593_948_425, 40, 10);
  assert.equal(spaced(anchor), "1.593 948 s");
  assert.deepEqual(list.map(({ at, label }) => [at, label]), [
    [1_593_948_430, "+430 ns"], [1_593_948_440, "+440 ns"], [1_593_948_450, "+450 ns"],
    [1_593_948_460, "+460 ns"]]);
});

test("an anchor is written with all of its digits", () => {
  for (const [step, text] of [[1, "1.593 948 s"], [10, "1.593 948 s"], [100, "1.593 948 s"],
    [1e3, "1.593 s"], [1e4, "1.593 s"]]) {
    assert.equal(spaced(ticks(1_593_948_425, 4 * step, step).anchor), text);
  }
});

test("from a step's beginning, ticks stand in the unit of the view", () => {
  const { list, anchor } = ticksFromZero(-1e5, 4e6, 5e5);
  assert.equal(anchor, null);
  assert.deepEqual(list.map(({ label }) => label), ["0.0 ms", "0.5 ms", "1.0 ms", "1.5 ms", "2.0 ms",
    "2.5 ms", "3.0 ms", "3.5 ms"]);
  assert.equal(ticksFromZero(-2e6, 1e6, 1e6).list[0].label, "−2 ms");
  assert.equal(ticksFromZero(3e9, 100, 50).list[0].label, "+0 ns"); // counts from an anchor
});

test("a time from a step's beginning is written to the nanosecond", () => {
  const written = { 0: "0 ns", 999: "999 ns", 1_945_665: "1.945 665 ms", "-1500": "−1.500 µs", 2e9: "2.000 000 000 s" };
  for (const [ns, text] of Object.entries(written)) assert.equal(spaced(fromZero(Number(ns))), text);
});
