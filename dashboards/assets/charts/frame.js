// @ts-check
// Parts of all charts: elements, keys, the note beside the pointer, and links to other pages.
import { withTimes } from "../address.js";
import { go } from "../navigation.js";

/** @import { Places } from "./types.d.ts" */

/**
 * An element with a class, and texts or elements inside: text is data, never markup.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {string} [className]
 * @param {...(Node | string)} inside
 */
export function make(tag, className = "", ...inside) {
  const element = document.createElement(tag);
  if (className) element.className = className;
  element.append(...inside);
  return element;
}

/**
 * A colour of the page.
 * @param {string} name of a variable in style.css
 */
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

export const MS = 1e6; // ns, of which charts of steps show milliseconds

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

/**
 * The step of an arrow key, in rows and columns.
 * @param {string} key
 */
export const arrow = (key) => /** @type {Record<string, [number, number]>} */ ({
  ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0],
})[key];

/**
 * Let arrow keys move through a chart, and let Enter act as a click.
 * @param {HTMLElement} root
 * @param {(event: KeyboardEvent) => boolean} act returns whether it handled the key
 */
export function listenToKeys(root, act) {
  root.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (act(event)) event.preventDefault();
  });
}

/**
 * A legend.
 * @param {(string | Node)[]} entries
 */
export const legend = (entries) =>
  make("ul", "legend plot-legend", ...entries.map((inside) => make("li", "", inside)));

/**
 * An entry of a legend: a character that looks like what is drawn, in its colour.
 * @param {string} character
 * @param {string} color
 * @param {string} name
 */
export function entry(character, color, name) {
  const glyph = make("span", "glyph", character);
  glyph.style.color = color;
  return make("span", "", glyph, name);
}

/** The note beside the pointer, which screen readers read aloud, too. */
export class Note {
  /** @param {HTMLElement} root that it is a part of */
  constructor(root) {
    this.shown = make("div", "chart-note");
    this.shown.hidden = true;
    this.said = make("div", "unseen");
    this.said.setAttribute("role", "status");
    root.append(this.shown, this.said);
  }

  /**
   * @param {string[]} lines the first one stands out
   * @param {number} x in the window
   * @param {number} y
   */
  show(lines, x, y) {
    this.shown.replaceChildren(...lines.map((line, index) => make(index ? "div" : "strong", "", line)));
    this.shown.hidden = false;
    const { offsetWidth, offsetHeight } = this.shown;
    const left = Math.min(x + 14, innerWidth - offsetWidth - 8);
    const top = y + 18 + offsetHeight < innerHeight ? y + 18 : y - offsetHeight - 10;
    this.shown.style.left = `${Math.max(left, 8)}px`;
    this.shown.style.top = `${top}px`;
  }

  /** @param {string[]} lines */
  say(lines) {
    this.said.textContent = lines.join(", ");
  }

  hide() {
    this.shown.hidden = true;
  }
}
