// @ts-check
// Places of the numbers at axes, and how they are written.
import { tickStep } from "../timeline/time.js";

const MAX_DECADES = 5; // of a logarithmic axis, with three ticks each

/**
 * Numbers at an axis, with as many decimals as distinguish them.
 * @param {number[]} places
 * @param {number} distance between two of them
 */
export function decimalTexts(places, distance) {
  const digits = Math.max(0, -Math.floor(Math.log10(distance) + 1e-9));
  const isWhole = Math.abs(distance * 10 ** digits - Math.round(distance * 10 ** digits)) < 1e-9;
  const decimals = isWhole ? digits : digits + 1; // of 0.025
  return places.map((place) => place.toFixed(decimals).replace("-", "−"));
}

/**
 * Places of ticks: 1, 2 or 5 of a power of ten apart, at most so many.
 * @param {number} low
 * @param {number} high
 * @param {number} count
 * @param {boolean} [isWhole] whether there is nothing between whole numbers
 */
export function linearTicks(low, high, count, isWhole = false) {
  const distance = tickStep(Math.max((high - low) / Math.max(count, 1), isWhole ? 1 : 0));
  const first = Math.ceil(low / distance);
  const length = Math.floor(high / distance) - first + 1;
  const places = Array.from({ length }, (_, index) => (first + index) * distance);
  return { places, texts: decimalTexts(places, distance) };
}

/**
 * Places of ticks of a logarithmic axis: 1, 2 and 5, or 1 alone, of every power of ten.
 * @param {number} low
 * @param {number} high
 */
export function logTicks(low, high) {
  const [first, last] = [Math.floor(Math.log10(low)), Math.ceil(Math.log10(high))];
  const digits = last - first > MAX_DECADES ? [1] : [1, 2, 5];
  const places = Array.from({ length: last - first + 1 }, (_, index) => first + index)
    .flatMap((power) => digits.map((digit) => Number(`${digit}e${power}`)))
    .filter((place) => place >= low && place <= high);
  return { places, texts: places.map((place) => place.toLocaleString("en", { maximumFractionDigits: 9 })) };
}
