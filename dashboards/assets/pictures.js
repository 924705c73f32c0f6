// @ts-check
// Pictures of a page, as it stands: an SVG drawing of its surfaces, lines, texts, charts and timelines, which
// any program shows, and the same as PNG with at least two pixels for each. A caption says what it shows,
// and its address.

import { drawings, shape } from "./drawing.js";
import { download } from "./elements.js";

/**
 * The file name of a page's picture: "launch-queue.png".
 * @param {string} title
 * @param {string} kind
 */
export const fileOf = (title, kind) =>
  `${title.split(" · ")[0]?.toLowerCase().replaceAll(/\W+/g, "-") || "traceprof"}.${kind}`;

const measure = document.createElement("canvas").getContext("2d");

/**
 * A text on one line, in a box on the page that its font's letters fill from top to bottom.
 * @param {string} text
 * @param {CSSStyleDeclaration} style
 * @param {{ left: number, top: number, width: number, height: number }} box
 */
function textShape(text, style, { left, top, width, height }) {
  const { fontStyle, fontWeight, fontSize, fontFamily, color, textDecorationLine } = style;
  let above = 0.8;
  if (measure) {
    measure.font = `${fontStyle} ${fontWeight} ${fontSize} ${fontFamily}`;
    const { fontBoundingBoxAscent: ascent, fontBoundingBoxDescent: descent } = measure.measureText(text);
    above = ascent / (ascent + descent);
  }
  return shape("text", {
    "x": left, "y": top + above * height, "font-family": fontFamily, "font-size": fontSize,
    "font-weight": fontWeight, "font-style": fontStyle === "normal" ? "" : fontStyle, "fill": color,
    "text-decoration": textDecorationLine === "none" ? "" : textDecorationLine,
    ...(width ? { textLength: width, lengthAdjust: "spacingAndGlyphs" } : {}),
  }, text);
}

/**
 * The lines of a text as the page breaks it, and where they are.
 * @param {Text} text
 */
function* linesOf(text) {
  const range = document.createRange();
  const start = text.data.search(/\S/);
  if (start < 0) return;
  range.setStart(text, start);
  range.setEnd(text, text.data.trimEnd().length);
  const boxes = range.getClientRects();
  if (boxes.length === 1 && boxes[0]) {
    yield { data: range.toString().replaceAll(/\s+/g, " "), box: boxes[0] };
    return;
  }
  /** @type {{ data: string, box: { left: number, top: number, width: number, height: number } } | null} */
  let line = null;
  let at = start;
  for (const letter of range.toString()) {
    range.setStart(text, at);
    range.setEnd(text, at += letter.length);
    const box = range.getBoundingClientRect();
    if (!box.width) continue;
    if (line && Math.abs(box.top - line.box.top) < box.height / 2) {
      line.data += letter;
      line.box.width = box.right - line.box.left;
    } else {
      if (line) yield line;
      line = { data: letter, box: { left: box.left, top: box.top, width: box.width, height: box.height } };
    }
  }
  if (line) yield line;
}

/** @param {string} length such as "12px" */
const pixels = (length) => Number(length.replace("px", "")) || 0; // of a percentage none is drawn

const CLEAR = "rgba(0, 0, 0, 0)";

/**
 * The surface and the lines around an element.
 * @param {CSSStyleDeclaration} style
 * @param {DOMRect} box
 */
function* surfaceOf(style, { left, top, width, height }) {
  const radius = pixels(style.borderTopLeftRadius);
  const place = { x: left, y: top, width, height, rx: Math.min(radius, width / 2, height / 2) };
  if (style.backgroundColor !== CLEAR) yield shape("rect", { ...place, fill: style.backgroundColor });
  const hatched = style.backgroundImage.match(/rgba?\([^)]*\)/g)?.find((color) => color !== CLEAR);
  if (hatched) yield shape("rect", { ...place, "fill": hatched, "fill-opacity": 0.4 });
  const [right, bottom] = [left + width, top + height];
  const sides = /** @type {const} */ ([
    ["Top", left, top, right, top], ["Right", right, top, right, bottom],
    ["Bottom", left, bottom, right, bottom], ["Left", left, top, left, bottom],
  ]);
  const drawn = sides.flatMap(([side, x1, y1, x2, y2]) => {
    const [wide, color] = [pixels(style[`border${side}Width`]), style[`border${side}Color`]];
    return wide && color !== CLEAR ? [{ x1, y1, x2, y2, "stroke": color, "stroke-width": wide }] : [];
  });
  const around = drawn.length === 4 && drawn.every(({ stroke }) => stroke === drawn[0]?.stroke);
  const outline = style.outlineStyle === "none" ? 0 : pixels(style.outlineWidth);
  const [line, wide] = around ? [drawn[0]?.stroke ?? "", drawn[0]?.["stroke-width"] ?? 0] : [style.outlineColor, outline];
  if (wide) yield shape("rect", { ...place, "fill": "none", "stroke": line, "stroke-width": wide });
  if (!around) for (const side of drawn) yield shape("line", side);
}

/**
 * A drawing of the report with the colours of a theme written out: other programs know no variables.
 * @param {string} svg
 * @param {boolean} isDark
 */
export function plain(svg, isDark) {
  /** @type {Record<string, string>} */
  const values = {}; // those of the dark theme come last
  for (const [, name = "", value = ""] of svg.matchAll(/--([\w-]+): ([^;}]+)/g)) {
    if (isDark || !(name in values)) values[name] = value.trim();
  }
  return svg.replaceAll(/var\(--([\w-]+)\)/g, (_, name) => values[name] ?? "none");
}

const DATA = "data:image/svg+xml,";

/** @param {string} source of a picture in the page */
async function embedded(source) {
  const svg = source.startsWith(DATA)
    ? decodeURIComponent(source.slice(DATA.length)) : await (await fetch(source)).text();
  return DATA + encodeURIComponent(plain(svg, document.documentElement.dataset["theme"] === "dark"));
}

/**
 * @param {Element} element
 * @param {Element} into
 * @param {Map<Element, Element>} canvases their drawings
 */
async function draw(element, into, canvases) {
  if (!element.checkVisibility({ visibilityProperty: true }) || element.matches(".unseen, .save")) return;
  const [style, box] = [getComputedStyle(element), element.getBoundingClientRect()];
  const { left: x, top: y, width, height } = box;
  const parts = style.opacity === "1" ? into : shape("g", { opacity: style.opacity });
  if (parts !== into) into.append(parts);
  parts.append(...surfaceOf(style, box));
  if (element instanceof HTMLCanvasElement) {
    parts.append(canvases.get(element) ?? "");
  } else if (element instanceof HTMLImageElement) {
    parts.append(shape("image", { x, y, width, height, href: await embedded(element.src) }));
  } else if (element instanceof HTMLInputElement || element instanceof HTMLSelectElement) {
    const written = element instanceof HTMLSelectElement ? element.selectedOptions[0]?.text ?? "" : element.value;
    const text = /checkbox|radio/.test(element.type) ? (element.matches(":checked") ? "✓" : "") : written;
    const high = 1.2 * pixels(style.fontSize);
    const place = { left: x + pixels(style.paddingLeft), top: y + (height - high) / 2, width: 0, height: high };
    if (text) parts.append(textShape(text, style, place));
  } else {
    const cut = style.overflow !== "visible" && width && height
      && (element.scrollWidth > element.clientWidth + 1 || element.scrollHeight > element.clientHeight + 1);
    let inside = parts;
    if (cut) {
      const id = `cut${Math.random().toString(36).slice(2)}`;
      const hole = shape("clipPath", { id }, shape("rect", { x, y, width, height }));
      inside = shape("g", { "clip-path": `url(#${id})` });
      parts.append(hole, inside);
    }
    for (const child of element.childNodes) {
      if (child instanceof Element) await draw(child, inside, canvases);
      else if (child instanceof Text) inside.append(...[...linesOf(child)].map(({ data, box: place }) => textShape(data, style, place)));
    }
  }
}

/** The page as an SVG drawing, and its size in pixels. */
async function pictured() {
  const page = /** @type {HTMLElement} */ (document.getElementById("page"));
  const caption = page.querySelector(".caption");
  const said = caption?.textContent ?? "";
  page.classList.add("pictured"); // shows the caption
  if (caption) caption.textContent = `${said} · ${location.href}`;
  const { left, top, width } = page.getBoundingClientRect();
  const height = Math.max(page.scrollHeight, page.offsetHeight);
  const root = shape("svg", { width, height, viewBox: `${left} ${top} ${width} ${height}` },
    shape("title", {}, caption?.textContent ?? ""),
    shape("rect", { x: left, y: top, width, height, fill: getComputedStyle(document.body).backgroundColor }));
  await draw(page, root, await drawings(page.querySelectorAll("canvas")));
  page.classList.remove("pictured");
  if (caption) caption.textContent = said;
  return { text: new XMLSerializer().serializeToString(root), width, height };
}

/** @param {"png" | "svg"} kind */
export async function savePicture(kind) {
  const { text, width, height } = await pictured();
  const name = fileOf(document.title, kind);
  if (kind === "svg") {
    download(new Blob([text], { type: "image/svg+xml" }), name);
    return;
  }
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height].map((size) => Math.round(size * Math.max(2, devicePixelRatio)));
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((file) => { if (file) download(file, name); });
}
