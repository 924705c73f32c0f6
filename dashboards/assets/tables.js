// @ts-check
/// <reference path="./globals.d.ts" />
// Tables in the browser. AG Grid, most of what a page weighs, is loaded by the first of them.
import { following } from "./navigation.js";

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
 * A cell that links to a view, the `href` of its row, if it has one. Its text is never markup.
 * @param {{ value: any, valueFormatted?: string | null, data: { href?: string } }} cell
 */
export function Place({ value, valueFormatted, data: { href } }) {
  const shown = valueFormatted ?? value;
  return href ? window.React.createElement("a", { href, onClick: following(href) }, shown) : shown;
}

/**
 * Give Dash a component in AG Grid's place that loads it, from `url`, where it is first drawn.
 * @param {string} url
 */
export function loadGridLate(url) {
  const { createElement, lazy, Suspense } = window.React;
  const Loaded = lazy(() => new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.addEventListener("load", () => {
      const library = window.dash_ag_grid;
      window.dash_ag_grid = { ...library, AgGrid }; // what Dash has drawn stays the same component
      resolve({ default: library.AgGrid });
    });
    script.addEventListener("error", reject);
    script.src = url;
    document.head.append(script);
  }));
  const AgGrid = (/** @type {object} */ props) =>
    createElement(Suspense, { fallback: null }, createElement(Loaded, props));
  window.dash_ag_grid = { AgGrid };
}
