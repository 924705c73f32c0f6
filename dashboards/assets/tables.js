// @ts-check
/// <reference path="./globals.d.ts" />
// Tables in the browser.
import { go } from "./navigation.js";

// Spreadsheets read text with such a beginning as a formula, and names in traces are arbitrary.
const FORMULA = /^[=+\-@\t\r\n＝＋－＠]/;

/**
 * A cell of a saved table: a number with all of its digits and without separators, nothing where
 * there is none, and text as text.
 * @param {{ value: any }} cell
 */
export function saved({ value }) {
  if (typeof value !== "string") return value ?? "";
  return FORMULA.test(value) ? `'${value}` : value;
}

/**
 * A cell that links to a view, the `href` of its row. Its text is never markup.
 * @param {{ value: any, data: { href: string } }} cell
 */
export function Place({ value, data }) {
  const follow = (/** @type {MouseEvent} */ event) => {
    if (event.ctrlKey || event.metaKey || event.shiftKey) return; // another tab or window
    event.preventDefault();
    go(data.href);
  };
  return window.React.createElement("a", { href: data.href, onClick: follow }, value);
}
