// @ts-check
// Colours on the canvas: those of what ran come from widgets/charts.py, those of the page from style.css.
/** @import { Theme } from "./types.d.ts" */

export const HATCHED = "communication";
export const INK = "#10151a"; // text on the colours of what ran, the same in light and dark

// Share of white in each of three shades: neighbours with different names look different.
const WHITES = [0, 0.22, 0.42];
const HATCHED_WHITES = [0, 0.12, 0.24]; // hatching makes it lighter
const THEME = ["ground", "surface", "sunken", "line", "text", "text-2", "accent", "focus",
  "highlight", "high", "medium", "low", "info"];

/**
 * "#009E73" and shares of white → the colours, lighter and lighter.
 * @param {string} color
 * @param {number[]} whites
 */
export function shades(color, whites) {
  const parts = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
  return whites.map(
    (white) => `rgb(${parts.map((part) => Math.round(part + (255 - part) * white)).join(" ")})`,
  );
}

/** @param {Record<string, string>} colors */
export const shadesByKind = (colors) => Object.fromEntries(
  Object.entries(colors).map(([kind, color]) =>
    [kind, shades(color, kind === HATCHED ? HATCHED_WHITES : WHITES)]),
);

/**
 * Colours of the page around an element, which differ between light and dark.
 * @param {Element} element
 * @returns {Theme}
 */
export function themeOf(element) {
  const style = getComputedStyle(element);
  return /** @type {Theme} */ (Object.fromEntries(
    THEME.map((name) => [name, style.getPropertyValue(`--${name}`).trim()])));
}

/** Diagonal lines over communication, which so differs from the rest by more than its colour. */
export const HATCH = {
  size: 8, d: "M-8 8L0 0M0 8L8 0M8 8L16 0", width: 1.6, color: "rgb(255, 255, 255)", opacity: 0.45,
};

/** @param {CanvasRenderingContext2D} context */
export function hatching(context) {
  const tile = document.createElement("canvas");
  tile.width = tile.height = HATCH.size;
  const pen = /** @type {CanvasRenderingContext2D} */ (tile.getContext("2d"));
  pen.strokeStyle = HATCH.color;
  pen.globalAlpha = HATCH.opacity;
  pen.lineWidth = HATCH.width;
  pen.stroke(new Path2D(HATCH.d));
  return /** @type {CanvasPattern} */ (context.createPattern(tile, "repeat"));
}
