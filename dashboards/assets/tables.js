// @ts-check
/// <reference path="./globals.d.ts" />
// Tables in the browser.
import { go } from "./navigation.js";

// Text that begins so is a formula to a spreadsheet, and a name in a trace can be anything.
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
 * A cell that leads to a view: `href` of its row says where. Its text is text.
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
