// @ts-check
// Parts of all charts: colours, fonts and legends, and links to other pages.
import { withTimes } from "../address.js";
import { make } from "../elements.js";
import { go } from "../navigation.js";

/** @import { Places } from "./types.d.ts" */

/** @param {string} name of a variable in style.css */
export const themeColor = (name) =>
  getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim();

/**
 * Numbers as text, with their significant digits.
 * @param {number} value
 */
export const text = (value) => {
  if (value === 0) return "0";
  const decimals = Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(decimals, 9) });
};

export const MS = 1e6; // ns: charts of steps show milliseconds

/**
 * Open the page that a column of a row links to.
 * @param {Places} row
 * @param {number} column
 * @param {string} base
 */
export function follow(row, column, base) {
  const [start, end] = [row.start_ns[column], row.end_ns[column]];
  if (start === undefined || end === undefined || row.href === null) return;
  go(withTimes(row.href, base, start, end));
}

export const FONT = "11px system-ui, 'Segoe UI', 'Liberation Sans', sans-serif";

/** @param {(string | Node)[]} entries */
export const legend = (entries) =>
  make("ul", { class: "legend plot-legend" }, ...entries.map((inside) => make("li", {}, inside)));

/**
 * An entry of a legend: a character that looks like what is drawn, in its colour.
 * @param {string} character
 * @param {string} color
 * @param {string} name
 */
export function entry(character, color, name) {
  const glyph = make("span", { class: "glyph" }, character);
  glyph.style.color = color;
  return make("span", {}, glyph, name);
}
