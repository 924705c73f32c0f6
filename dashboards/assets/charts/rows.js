// @ts-check
// Rows of a chart above one axis. A drag chooses a piece of the axis, a double click all of it.
import { CanvasChart } from "./canvas.js";
import { FONT, themeColor } from "./frame.js";
import { linearTicks } from "./ticks.js";

/** @import { Box, Picture, RowPlace, RowsOptions } from "./types.d.ts" */

const [LEFT, RIGHT] = [58, 22]; // of the numbers of a row, and beside the last one of the axis
const [TITLE, BELOW, FOOT] = [22, 6, 30]; // above a row, below it, and below the last one
const [TICK, LINE] = [75, 18]; // between numbers of the axis, and of a row
const CLICK = 4; // pixels that the pointer may move in a click

/**
 * @template Row
 * @extends {CanvasChart<RowPlace>}
 * @implements {Picture<RowPlace>}
 */
export class RowsChart extends CanvasChart {
  /**
   * @param {HTMLElement} root
   * @param {string} label
   * @param {Row[]} rows
   * @param {RowsOptions<Row>} options
   */
  constructor(root, label, rows, options) {
    super(root, label);
    this.rows = rows;
    this.options = options;
    this.range = options.range; // of the axis
    /** @type {number | null} */
    this.pointer = null; // pixels from the left
    /** @type {{ from: number, to: number } | null} */
    this.drag = null;
    this.isClick = true; // else the pointer was dragged
    this.#listen();
    this.redraw();
  }

  get height() {
    return this.rows.length * (TITLE + this.options.height + BELOW) + FOOT;
  }

  get right() {
    return this.width - RIGHT;
  }

  /** @param {number} value on the axis */
  x(value) {
    const [from, to] = this.range;
    return LEFT + ((value - from) / (to - from)) * (this.right - LEFT);
  }

  /** @param {number} x pixels from the left */
  valueAt(x) {
    const [from, to] = this.range;
    return from + ((x - LEFT) / (this.right - LEFT)) * (to - from);
  }

  /**
   * Where a row is drawn.
   * @param {number} number
   * @returns {Box}
   */
  box(number) {
    const { height, top: topOf } = this.options;
    const top = TITLE + number * (TITLE + height + BELOW);
    const scale = height / topOf(/** @type {Row} */ (this.rows[number]));
    return {
      left: LEFT, top, width: this.right - LEFT, height,
      x: (value) => this.x(value), y: (value) => top + height - value * scale,
    };
  }

  #listen() {
    const { canvas } = this;
    canvas.addEventListener("pointerdown", (event) => {
      if (event.button !== 0 || !this.placeAt(event.offsetX, event.offsetY)) return;
      canvas.setPointerCapture(event.pointerId);
      this.drag = { from: event.offsetX, to: event.offsetX };
    });
    canvas.addEventListener("pointermove", ({ offsetX }) => {
      this.pointer = Math.min(Math.max(offsetX, LEFT), this.right);
      if (this.drag) this.drag.to = this.pointer;
      this.redraw();
    });
    canvas.addEventListener("pointerup", () => {
      const [from, to] = this.drag ? [this.drag.from, this.drag.to].toSorted((a, b) => a - b) : [0, 0];
      this.drag = null;
      this.isClick = to - from <= CLICK;
      if (!this.isClick) this.options.choose(this.valueAt(from), this.valueAt(to));
      this.redraw();
    });
    for (const end of ["pointerleave", "pointercancel"]) { // as when a finger scrolls the page
      canvas.addEventListener(end, () => {
        this.pointer = this.drag = null;
        this.redraw();
      });
    }
    canvas.addEventListener("click", (event) => {
      if (!this.isClick) event.stopImmediatePropagation();
    }, { capture: true });
    canvas.addEventListener("dblclick", () => this.options.chooseAll());
  }

  /** @param {CanvasRenderingContext2D} context */
  paint(context) {
    const { axis, unit, isWhole, height } = this.options;
    const { places, texts } = linearTicks(...this.range, Math.floor((this.right - LEFT) / TICK), isWhole);
    for (const [number, row] of this.rows.entries()) {
      const box = this.box(number);
      const top = box.top + height;
      context.fillStyle = themeColor("line");
      const numbers = linearTicks(0, this.options.top(row), Math.max(Math.floor(height / LINE), 3), this.options.counts);
      for (const value of numbers.places) context.fillRect(LEFT - 4, Math.round(box.y(value)), box.width + 4, 1);
      for (const place of isWhole ? [] : places) context.fillRect(Math.round(this.x(place)), box.top, 1, height);
      context.save();
      context.beginPath();
      context.rect(LEFT, box.top - 14, box.width, height + 15);
      context.clip();
      this.options.paint(context, row, box);
      context.restore();
      context.fillStyle = themeColor("text-2");
      context.textAlign = "right";
      numbers.texts.forEach((text, at) => context.fillText(text, LEFT - 7, box.y(numbers.places[at] ?? 0)));
      context.textAlign = "left";
      context.font = FONT.replace("11px", "13px");
      context.fillText(this.options.title(row), LEFT, box.top - 13, box.width);
      context.font = FONT;
      context.save();
      context.translate(10, top - height / 2);
      context.rotate(-Math.PI / 2);
      context.textAlign = "center";
      context.fillText(unit(row), 0, 0);
      context.restore();
    }
    const bottom = this.height - FOOT - BELOW;
    context.textAlign = "center";
    texts.forEach((text, at) => context.fillText(text, this.x(places[at] ?? 0), bottom + 12));
    context.fillText(axis, (LEFT + this.right) / 2, bottom + 28);
    this.#paintPointer(context, bottom);
  }

  /**
   * @param {CanvasRenderingContext2D} context
   * @param {number} bottom
   */
  #paintPointer(context, bottom) {
    const at = this.pointer ?? (this.at ? this.pointOf(this.at)[0] : -1);
    context.fillStyle = themeColor("text-2");
    if (at >= LEFT && at <= this.right) context.fillRect(Math.round(at), TITLE, 1, bottom - TITLE);
    if (!this.drag) return;
    context.globalAlpha = 0.18;
    context.fillStyle = themeColor("accent");
    context.fillRect(this.drag.from, TITLE, this.drag.to - this.drag.from, bottom - TITLE);
    context.globalAlpha = 1;
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  placeAt(x, y) {
    const row = Math.floor(y / (TITLE + this.options.height + BELOW));
    const drawn = this.rows[row];
    if (!drawn || x < LEFT || x > this.right) return null;
    return { row, index: this.options.under(drawn, this.valueAt(x)) };
  }

  /**
   * @param {number} rows
   * @param {number} columns
   */
  next(rows, columns) {
    const { row: before, index } = this.at ?? { row: 0, index: -1 };
    const row = Math.min(Math.max(before + rows, 0), this.rows.length - 1);
    const last = this.options.places(/** @type {Row} */ (this.rows[row])).length - 1;
    return { row, index: Math.min(Math.max(index + columns, 0), last) };
  }

  /**
   * @param {RowPlace} place
   * @returns {[number, number]}
   */
  pointOf({ row, index }) {
    const box = this.box(row);
    return [this.x(this.options.places(/** @type {Row} */ (this.rows[row]))[index] ?? 0), box.top + box.height / 2];
  }

  /** @param {RowPlace} place */
  lines({ row, index }) {
    return this.options.lines(/** @type {Row} */ (this.rows[row]), index);
  }

  /** @param {RowPlace} place */
  leads({ row }) {
    return Boolean(this.options.open && /** @type {{ href?: string | null }} */ (this.rows[row]).href);
  }

  /** @param {RowPlace} place */
  go({ row, index }) {
    this.options.open?.(/** @type {Row} */ (this.rows[row]), index);
  }
}
