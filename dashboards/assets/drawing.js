// @ts-check
// Records what is drawn on a canvas as shapes of SVG. The canvas is drawn as always, and its context
// keeps the state: colours, fonts and transformations are read from it. Paths, rectangles, circles,
// clipping and texts are recorded, which is what our painters use; there are libraries that
// draw SVG in place of a canvas, but none that knows `Path2D`.
import { RecordedPath, rounded } from "./recorded_path.js";
import { HATCH } from "./timeline/colors.js";

const SVG = "http://www.w3.org/2000/svg";
const FONT = /^(italic )?(?:(bold|\d+) )?([\d.]+px) (.+)$/; // as a context writes its own
const TRANSLUCENT = /^rgba\((.+), ([\d.]+)\)$/;

let identifiers = 0;

/**
 * A shape of a drawing; what is not known is left out.
 * @param {string} name
 * @param {Record<string, string | number>} [attributes]
 * @param {(Node | string)[]} children
 */
export function shape(name, attributes = {}, ...children) {
  const element = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== "") element.setAttribute(key, typeof value === "number" ? rounded(value) : value);
  }
  element.append(...children);
  return element;
}

class Recorder {
  #path = new RecordedPath();
  #clip = ""; // the identifier of what is clipped to
  /** @type {string[]} */
  #saved = [];
  #group = shape("g");
  #groupOf = ""; // clipping and transformation of the group
  #rects = { style: "", path: new RecordedPath(), element: shape("path") }; // which have the same colour
  /** @type {SVGElement | null} */
  #pattern = null;

  /** @param {HTMLCanvasElement} canvas */
  constructor(canvas) {
    this.canvas = canvas;
    this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    this.root = shape("g");
    /** @type {Record<string, (...given: any[]) => void>} */
    const recorded = {
      beginPath: () => { this.#path = new RecordedPath(); },
      save: () => this.#saved.push(this.#clip),
      restore: () => { this.#clip = this.#saved.pop() ?? ""; },
      clearRect: () => this.#clear(), // which everybody does with all of a canvas
      fill: (path) => this.#fill(this.#text(path)),
      stroke: (path) => this.#stroke(this.#text(path)),
      clip: (path) => this.#clipTo(this.#text(path)),
      fillRect: (...box) => this.#fillRect(box),
      strokeRect: (...box) => {
        const path = new RecordedPath();
        path.add("rect", box);
        this.#stroke(path.text);
      },
      fillText: (text, x, y, room) => this.#write(text, x, y, room),
    };
    for (const name of RecordedPath.NAMES) recorded[name] = (...numbers) => this.#path.add(name, numbers);
    this.names = Object.keys(recorded);
    const context = /** @type {any} */ (this.context);
    for (const [name, record] of Object.entries(recorded)) {
      const original = context[name];
      context[name] = (/** @type {any[]} */ ...given) => {
        record(...given);
        original.apply(context, given);
      };
    }
  }

  /** The drawing, in the box of the canvas; the context is as it was before. */
  finish() {
    for (const name of this.names) delete (/** @type {any} */ (this.context)[name]);
    this.#finishRects();
    const { width, height } = this.canvas;
    const { left: x, top: y, width: wide, height: high } = this.canvas.getBoundingClientRect();
    return shape("svg", { x, y, width: wide, height: high, viewBox: `0 0 ${width} ${height}` }, this.root);
  }

  #clear() {
    this.#finishRects();
    this.root.replaceChildren();
    this.#groupOf = "";
    this.#pattern = null;
  }

  /** @param {unknown} path */
  #text(path) {
    return (path instanceof RecordedPath ? path : this.#path).text;
  }

  #transform() {
    const { a, b, c, d, e, f } = this.context.getTransform();
    return `matrix(${[a, b, c, d, e, f].map((number) => Number(number.toFixed(4))).join(" ")})`;
  }

  /** @param {SVGElement} element */
  #put(element) {
    this.#finishRects();
    this.#regroup();
    this.#group.append(element);
  }

  #regroup() {
    const transform = this.#transform();
    if (this.#groupOf === `${this.#clip} ${transform}`) return;
    this.#groupOf = `${this.#clip} ${transform}`;
    this.#group = shape("g", { transform });
    this.root.append(this.#clip ? shape("g", { "clip-path": `url(#${this.#clip})` }, this.#group) : this.#group);
  }

  /**
   * Attributes of a colour: other programs want opacity apart.
   * @param {"fill" | "stroke"} name
   * @param {string | CanvasGradient | CanvasPattern} style
   */
  #colored(name, style) {
    const [, color = "", alpha = 1] = TRANSLUCENT.exec(String(style)) ?? [];
    const opacity = this.context.globalAlpha * Number(alpha);
    const written = typeof style === "string" ? (color && `rgb(${color})`) || style : `url(#${this.#hatching()})`;
    return { [name]: written, ...(opacity < 1 ? { [`${name}-opacity`]: opacity } : {}) };
  }

  #hatching() {
    const { size, d, color, opacity, width } = HATCH;
    if (!this.#pattern) {
      this.#pattern = shape("pattern",
        { "id": `hatching${identifiers += 1}`, "width": size, "height": size, "patternUnits": "userSpaceOnUse" },
        shape("path", { d, "stroke": color, "stroke-opacity": opacity, "stroke-width": width }));
      this.root.prepend(this.#pattern);
    }
    return this.#pattern.id;
  }

  /** @param {string} d */
  #fill(d) {
    if (d) this.#put(shape("path", { d, ...this.#colored("fill", this.context.fillStyle) }));
  }

  /** @param {number[]} box */
  #fillRect(box) {
    const colored = this.#colored("fill", this.context.fillStyle);
    this.#regroup();
    const style = `${this.#groupOf} ${Object.values(colored).join(" ")}`;
    const isOpaque = Object.keys(colored).length === 1; // others would hide each other where they overlap
    if (style !== this.#rects.style || !isOpaque) {
      this.#finishRects();
      this.#rects = { style, path: new RecordedPath(), element: shape("path", colored) };
      this.#group.append(this.#rects.element);
    }
    this.#rects.path.add("rect", box);
  }

  #finishRects() {
    if (this.#rects.style) this.#rects.element.setAttribute("d", this.#rects.path.text);
    this.#rects.style = "";
  }

  /** @param {string} d */
  #stroke(d) {
    const { strokeStyle, lineWidth, lineCap, lineJoin } = this.context;
    if (!d) return;
    this.#put(shape("path", {
      d, "fill": "none", ...this.#colored("stroke", strokeStyle), "stroke-width": lineWidth,
      "stroke-dasharray": this.context.getLineDash().join(" "),
      "stroke-linecap": lineCap === "butt" ? "" : lineCap, "stroke-linejoin": lineJoin === "miter" ? "" : lineJoin,
    }));
  }

  /** @param {string} d of a path, to be clipped to within what is clipped to already */
  #clipTo(d) {
    const id = `clip${identifiers += 1}`;
    this.root.append(shape("clipPath", { id, "clip-path": this.#clip && `url(#${this.#clip})` },
      shape("path", { d, transform: this.#transform() })));
    this.#clip = id;
  }

  /**
   * @param {string} text
   * @param {number} x
   * @param {number} y
   * @param {number} [room]
   */
  #write(text, x, y, room = Infinity) {
    const { context } = this;
    const { textAlign, textBaseline } = context;
    const { width, actualBoundingBoxAscent: above } = context.measureText(text);
    if (!text || !width) return;
    context.textBaseline = "alphabetic";
    const below = context.measureText(text).actualBoundingBoxAscent - above; // the line on which letters stand
    context.textBaseline = textBaseline;
    const textLength = Math.min(width, room);
    const before = { center: textLength / 2, right: textLength, end: textLength, left: 0, start: 0 }[textAlign];
    const [, style = "", weight = "", size = "", family = ""] = FONT.exec(context.font) ?? [];
    this.#put(shape("text", {
      "x": x - before, "y": y + below, "font-family": family, "font-size": size, "font-weight": weight,
      "font-style": style.trim(), ...this.#colored("fill", context.fillStyle),
      textLength, "lengthAdjust": "spacingAndGlyphs",
    }, text));
  }
}

/**
 * Have canvases drawn anew, and return a drawing of each.
 * @param {Iterable<HTMLCanvasElement>} canvases
 * @returns {Promise<Map<HTMLCanvasElement, SVGElement>>}
 */
export async function drawings(canvases) {
  const recorders = [...canvases].map((canvas) => new Recorder(canvas));
  const { Path2D: Pixels } = window;
  window.Path2D = RecordedPath;
  try {
    window.dispatchEvent(new Event("traceprof:redraw"));
    for (let frame = 0; frame < 2; frame += 1) await new Promise((resolve) => { requestAnimationFrame(resolve); });
  } finally {
    window.Path2D = Pixels;
  }
  return new Map(recorders.map((recorder) => [recorder.canvas, recorder.finish()]));
}
