// @ts-check
// What charts share: elements, the note beside the pointer, what is said aloud, and going places.
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
 * Numbers as they are read: with so many digits as count.
 * @param {number} value
 */
export const text = (value) => {
  if (value === 0) return "0";
  const decimals = Math.max(0, 3 - Math.floor(Math.log10(Math.abs(value))));
  return value.toLocaleString("en", { maximumFractionDigits: Math.min(decimals, 9) });
};

/**
 * Go where a column of a row leads.
 * @param {Places} row
 * @param {number} column
 * @param {string} base
 */
export function follow(row, column, base) {
  const [start, end] = [row.starts[column], row.ends[column]];
  if (start === undefined || end === undefined) return;
  go(withTimes(row.href, base, start, end));
}

/** The note beside the pointer, which is also said aloud. */
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
