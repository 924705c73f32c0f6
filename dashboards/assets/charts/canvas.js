// @ts-check
// A chart on its own canvas: its size, and its handling of pointer and keys.
import { Note, make } from "../elements.js";
import { FONT } from "./frame.js";

/** @import { Picture } from "./types.d.ts" */

/** @type {Record<string, [number, number]>} */
const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }; // in rows and columns

/**
 * Base of these charts; `Place` is a thing under the pointer, such as a cell.
 * @template Place
 */
export class CanvasChart {
  /**
   * @param {HTMLElement} root
   * @param {string} label its content, for screen readers
   */
  constructor(root, label) {
    this.root = root;
    /** @type {Place | null} */
    this.at = null; // the place that keys have selected
    this.canvas = make("canvas");
    this.canvas.tabIndex = 0;
    this.canvas.setAttribute("role", "application");
    this.canvas.setAttribute("aria-label", label);
    root.replaceChildren(this.canvas);
    this.note = new Note(root);
    this.resizer = new ResizeObserver(() => this.redraw());
    this.resizer.observe(root);
    this.canvas.addEventListener("mousemove", (event) => this.#onMove(event));
    this.canvas.addEventListener("mouseleave", () => this.note.hide());
    this.canvas.addEventListener("click", (event) => {
      const place = this.picture.placeAt(event.offsetX, event.offsetY);
      if (place) this.picture.go(place);
    });
    this.canvas.addEventListener("keydown", (event) => {
      if (!event.ctrlKey && !event.metaKey && !event.altKey && this.#onKey(event)) event.preventDefault();
    });
  }

  get width() {
    return Math.max(this.root.clientWidth, 200);
  }

  /** What a subclass draws. */
  get picture() {
    return /** @type {Picture<Place>} */ (/** @type {unknown} */ (this));
  }

  redraw() {
    const { canvas, picture, width } = this;
    const { height } = picture;
    canvas.width = Math.round(width * devicePixelRatio);
    canvas.height = Math.round(height * devicePixelRatio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    context.font = FONT;
    context.clearRect(0, 0, canvas.width, canvas.height); // for who records what is drawn
    context.scale(devicePixelRatio, devicePixelRatio);
    context.textBaseline = "middle";
    picture.paint(context);
  }

  /** @param {MouseEvent} event */
  #onMove(event) {
    const { picture } = this;
    const place = picture.placeAt(event.offsetX, event.offsetY);
    this.canvas.style.cursor = place && picture.leads(place) ? "pointer" : "";
    if (place) this.note.show(picture.lines(place), event.clientX, event.clientY);
    else this.note.hide();
  }

  /**
   * Let arrow keys move through the chart, and Enter act as a click; returns whether it was one of these.
   * @param {KeyboardEvent} event
   */
  #onKey({ key }) {
    const { picture } = this;
    if (key === "Enter") {
      if (this.at) picture.go(this.at);
      return true;
    }
    const steps = ARROWS[key];
    if (!steps) return false;
    this.at = picture.next(...steps);
    if (!this.at) return false;
    this.redraw();
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = picture.pointOf(this.at);
    const lines = picture.lines(this.at);
    this.note.show(lines, box.left + x, box.top + y);
    this.note.say(lines.join(", "));
    return true;
  }

  dispose() {
    this.resizer.disconnect();
  }
}
