// @ts-check
// Time on the timeline. A view's times are numbers: nanoseconds from a base, so that they are whole
// and exact up to 2^53 (104 days). Times of the report can be UTC and are BigInt.
/** @import { Grid } from "./types.d.ts" */
/** @type {[string, number][]} */
const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];
/** @type {[string, number]} */
const NANOSECOND = ["ns", 1];
const ROUNDED_UP = 0.9995; // what is written as 1000 of a unit is 1.00 of the next one
const MAX_DECIMALS = 4; // of a time in seconds on the axis
const MAX_UNIT_DECIMALS = 3;
const THIN_SPACE = "\u2009";

/**
 * @param {number} ns
 * @returns {[string, number]}
 */
const unitOf = (ns) => UNITS.find(([, scale]) => ns >= scale) ?? NANOSECOND;

/**
 * 12345678 → "12 345 678", with thin spaces.
 * @param {number | string} digits
 */
export const grouped = (digits) => String(digits).replaceAll(/\B(?=(\d{3})+(?!\d))/g, THIN_SPACE);

/**
 * A number of things, such as `1 event` or `3 events`.
 * @param {number} number
 * @param {string} thing
 */
export const counted = (number, thing) => `${grouped(number)} ${thing}${number === 1 ? "" : "s"}`;

/**
 * A duration with three significant digits and its unit, as units.duration writes it.
 * @param {number} ns
 */
export function duration(ns) {
  const [unit, scale] = unitOf(Math.abs(ns) / ROUNDED_UP);
  const value = ns / scale;
  const size = Math.abs(value);
  if (Number.isInteger(value) && size < 1000) return `${value} ${unit}`;
  const digits = size < 9.995 ? 2 : size < 99.95 ? 1 : 0;
  return `${value.toFixed(digits)} ${unit}`;
}

/**
 * A number of bytes with three significant digits and its unit, as units.size_text writes it.
 * @param {number} bytes
 */
export function sizeText(bytes) {
  const unit = ["B", "kB", "MB"].findIndex((_, place) => bytes < 1000 ** (place + 1) * ROUNDED_UP);
  const value = bytes / 1000 ** (unit < 0 ? 3 : unit);
  return `${value < 1000 ? Number(value.toPrecision(3)) : value.toFixed(0)} ${["B", "kB", "MB"][unit] ?? "GB"}`;
}

/**
 * A duration and, where that is rounded, the nanoseconds: "1.59 ms (1 593 948 ns)".
 * @param {number} ns
 */
export const exactly = (ns) => (ns >= 1000 ? `${duration(ns)} (${grouped(ns)} ns)` : duration(ns));

/**
 * A time in seconds to the nanosecond, or to a number of decimals: "1.593 948 425 s".
 * @param {number} ns
 * @param {number} [decimals]
 */
export function seconds(ns, decimals = 9) {
  const whole = Math.abs(Math.round(ns));
  const fraction = String(whole % 1e9).padStart(9, "0").slice(0, decimals);
  const groups = fraction.match(/\d{1,3}/g)?.join(THIN_SPACE);
  const sign = ns < 0 && whole ? "−" : "";
  return `${sign}${grouped(Math.floor(whole / 1e9))}${groups ? `.${groups}` : ""} s`;
}

/**
 * The distance of grid lines: 1, 2 or 5 times a power of ten, at least a minimum.
 * @param {number} minimum
 */
export function tickStep(minimum) {
  const power = 10 ** Math.floor(Math.log10(minimum));
  return power * ([1, 2, 5].find((factor) => factor * power >= minimum * 0.999) ?? 10);
}

/**
 * Grid lines of a view, at least `minimum` ns apart, with labels short enough to stand side by
 * side: `list` of {at, label}. Where a time in seconds would need too many digits, labels count
 * from `anchor`, which is null otherwise.
 * @param {number} start
 * @param {number} span
 * @param {number} minimum
 */
export function ticks(start, span, minimum) {
  const step = tickStep(Math.max(minimum, 1)); // ns are whole
  const decimals = Math.max(0, Math.min(9, 9 - Math.floor(Math.log10(step))));
  const [unit, scale] = unitOf(step);
  const counts = decimals > MAX_DECIMALS;
  const whole = scale * 1000; // of the next larger unit
  const anchor = Math.floor(start / whole) * whole;
  const label = (/** @type {number} */ at) =>
    counts ? `+${grouped(Math.round((at - anchor) / scale))} ${unit}` : seconds(at, decimals);
  const list = [];
  for (let at = Math.ceil(start / step) * step; at <= start + span; at += step) {
    list.push({ at, label: label(at) });
  }
  return { list, anchor: counts ? seconds(anchor, 9 - Math.log10(whole)) : null };
}

/**
 * Grid lines of a view on a clock of its own, which is 0 where a step begins: their times stand in
 * the unit that suits the view, as long as three decimals make them differ.
 * @param {number} start
 * @param {number} span
 * @param {number} minimum
 */
export function ticksFromZero(start, span, minimum) {
  const grid = ticks(start, span, minimum);
  const [unit, scale] = unitOf(Math.max(Math.abs(start), Math.abs(start + span)));
  const decimals = Math.max(0, Math.ceil(Math.log10(scale / tickStep(Math.max(minimum, 1))) - 1e-9));
  if (decimals > MAX_UNIT_DECIMALS) return grid;
  const label = (/** @type {number} */ at) => `${(at / scale).toFixed(decimals).replace("-", "−")} ${unit}`;
  return { list: grid.list.map(({ at }) => ({ at, label: label(at) })), anchor: null };
}

/**
 * A time on such a clock, to the nanosecond: "1.945 665 ms".
 * @param {number} ns
 */
export function fromZero(ns) {
  const whole = Math.abs(Math.round(ns));
  const [unit, scale] = unitOf(whole);
  const fraction = String(whole % scale).padStart(String(scale).length - 1, "0");
  const groups = scale > 1 ? `.${fraction.match(/\d{3}/g)?.join(THIN_SPACE)}` : "";
  return `${ns < 0 && whole ? "−" : ""}${grouped(Math.floor(whole / scale))}${groups} ${unit}`;
}
