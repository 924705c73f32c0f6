// @ts-check
// A chart on its own canvas: its size, and its handling of pointer and keys.
import { Note, make } from "../elements.js";
import { FONT, arrow, listenToKeys } from "./frame.js";

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
      const place = this.placeAt(event.offsetX, event.offsetY);
      if (place) this.go(place);
    });
    listenToKeys(this.canvas, (event) => this.#onKey(event));
  }

  get width() {
    return Math.max(this.root.clientWidth, 200);
  }

  /** Height of the whole, in pixels. */
  get height() {
    return 0;
  }

  /** @param {CanvasRenderingContext2D} _context in pixels of the page */
  paint(_context) {}

  /**
   * The place at a point of the canvas.
   * @param {number} _x
   * @param {number} _y
   * @returns {Place | null}
   */
  placeAt(_x, _y) {
    return null;
  }

  /**
   * The place that an arrow key selects.
   * @param {number} _rows
   * @param {number} _columns
   * @returns {Place | null}
   */
  next(_rows, _columns) {
    return this.at;
  }

  /**
   * The point of a place: its note stands beside it.
   * @param {Place} _place
   * @returns {[number, number]}
   */
  pointOf(_place) {
    return [0, 0];
  }

  /**
   * @param {Place} _place
   * @returns {string[]}
   */
  lines(_place) {
    return [];
  }

  /**
   * True if a click on a place leads to a page.
   * @param {Place} _place
   */
  leads(_place) {
    return false;
  }

  /** @param {Place} _place */
  go(_place) {}

  redraw() {
    const { canvas, width, height } = this;
    canvas.width = Math.round(width * devicePixelRatio);
    canvas.height = Math.round(height * devicePixelRatio);
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = this.context();
    context.clearRect(0, 0, canvas.width, canvas.height); // for who records what is drawn
    context.scale(devicePixelRatio, devicePixelRatio);
    context.textBaseline = "middle";
    this.paint(context);
  }

  context() {
    const context = /** @type {CanvasRenderingContext2D} */ (this.canvas.getContext("2d"));
    context.font = FONT;
    return context;
  }

  /** @param {MouseEvent} event */
  #onMove(event) {
    const place = this.placeAt(event.offsetX, event.offsetY);
    this.canvas.style.cursor = place && this.leads(place) ? "pointer" : "";
    if (place) this.note.show(this.lines(place), event.clientX, event.clientY);
    else this.note.hide();
  }

  /** @param {KeyboardEvent} event */
  #onKey({ key }) {
    if (key === "Enter") {
      if (this.at) this.go(this.at);
      return true;
    }
    const steps = arrow(key);
    if (!steps) return false;
    this.at = this.next(...steps);
    if (!this.at) return false;
    this.redraw();
    const box = this.canvas.getBoundingClientRect();
    const [x, y] = this.pointOf(this.at);
    const lines = this.lines(this.at);
    this.note.show(lines, box.left + x, box.top + y);
    this.note.say(lines.join(", "));
    return true;
  }

  dispose() {
    this.resizer.disconnect();
  }
}
