// @ts-check
// Lanes: a row for each name, with bars and points at their values.
import { go } from "../navigation.js";
import { polygon } from "../timeline/geometry.js";
import { CanvasChart } from "./canvas.js";
import { widest } from "./cells.js";
import { entry, legend, themeColor } from "./frame.js";
import { linearTicks, logTicks } from "./ticks.js";

/** @import { LaneMark, Lanes, Picture } from "./types.d.ts" */
/** @typedef {{ series: number, point: number, row: number }} LanePlace */

const FOOT = 38; // of the axis and its title
const TOP = 4;
const RIGHT = 18;
const TICK = 70; // between ticks, at least
const MAX_NAMES = 0.4; // of the width
const NEAR = 14; // pixels, the reach of the pointer

/**
 * Place and colours of a mark.
 * @typedef {object} Spot
 * @property {number} x of its value
 * @property {number} y the middle of its row
 * @property {number} zero where bars begin
 * @property {number} size of the row
 * @property {string} color
 * @property {string} paper behind it
 */

/** @typedef {{ glyph: string, draw: (context: CanvasRenderingContext2D, spot: Spot) => void }} Mark */

/**
 * @param {CanvasRenderingContext2D} context
 * @param {Spot} spot
 */
function circle(context, { x, y }) {
  context.beginPath();
  context.arc(x, y, 5, 0, 2 * Math.PI);
}

/** @type {Record<LaneMark, Mark>} */
const MARKS = {
  bar: {
    glyph: "■",
    draw(context, { x, y, zero, size }) {
      context.fillRect(Math.min(x, zero), y - 0.36 * size, Math.abs(x - zero), 0.72 * size);
    },
  },
  dot: {
    glyph: "●",
    draw(context, spot) {
      circle(context, spot);
      context.globalAlpha = 0.75; // points of many ranks overlap
      context.fill();
      context.globalAlpha = 1;
    },
  },
  ring: {
    glyph: "○",
    draw(context, spot) {
      circle(context, spot);
      context.fillStyle = spot.paper;
      context.fill();
      context.stroke();
    },
  },
  tick: {
    glyph: "┃",
    draw(context, { x, y, size }) {
      context.fillRect(x - 1.5, y - 0.36 * size, 3, 0.72 * size);
    },
  },
  diamond: {
    glyph: "◇",
    draw(context, { x, y, paper }) {
      polygon(context, [[x - 6, y], [x, y - 6], [x + 6, y], [x, y + 6]]);
      context.fillStyle = paper;
      context.fill();
      context.stroke();
    },
  },
};

/**
 * @param {CanvasRenderingContext2D} context
 * @param {LaneMark} name
 * @param {Spot} spot
 */
function drawMark(context, name, spot) {
  context.fillStyle = spot.color;
  context.strokeStyle = spot.color;
  context.lineWidth = 2;
  MARKS[name].draw(context, spot);
}

const least = (/** @type {number[]} */ values) => values.reduce((low, value) => Math.min(low, value), Infinity);
const most = (/** @type {number[]} */ values) => values.reduce((high, value) => Math.max(high, value), -Infinity);

/**
 * The range of the axis: all values, and 0 unless it is logarithmic.
 * @param {Lanes} drawn
 * @returns {[number, number]}
 */
export function extent({ scale, per, series }) {
  const values = series.flatMap(({ values: ofSeries }) => ofSeries.map((value) => value / per));
  if (scale === "log") {
    const positive = values.filter((value) => value > 0);
    return positive.length ? [least(positive) / 1.3, most(positive) * 1.3] : [1, 10];
  }
  const [low, high] = [least([0, ...values]), most([0, ...values])];
  const margin = 0.05 * (high - low) || 1;
  return [low < 0 ? low - margin : 0, high > 0 || low === high ? high + margin : 0];
}

/**
 * @extends {CanvasChart<LanePlace>}
 * @implements {Picture<LanePlace>}
 */
export class LanesChart extends CanvasChart {
  /**
   * @param {HTMLElement} root
   * @param {Lanes} drawn
   * @param {string} label
   */
  constructor(root, drawn, label) {
    const leads = drawn.rows.some(({ href }) => href !== null);
    super(root, `${label}; arrow keys move through it${leads ? ", Enter leads to the timeline" : ""}`);
    this.drawn = drawn;
    this.names = widest(...drawn.rows.map(({ title }) => title)) + 16;
    this.extent = extent(drawn);
    /** @type {LanePlace[][]} */
    this.inRow = drawn.rows.map(() => []); // by their values
    drawn.series.forEach(({ rows }, series) => rows.forEach((row, point) =>
      this.inRow[row]?.push({ series, point, row })));
    for (const places of this.inRow) places.sort((one, other) => this.#value(one) - this.#value(other));
    if (drawn.series.length > 1) {
      root.prepend(legend(drawn.series.map(({ name, mark, color }) =>
        entry(MARKS[mark].glyph, color ?? "var(--text)", name))));
    }
    this.redraw();
  }

  get height() {
    return TOP + this.drawn.row_height * this.drawn.rows.length + FOOT;
  }

  get left() {
    return Math.min(this.names, MAX_NAMES * this.width);
  }

  /** @param {LanePlace} place */
  #value({ series, point }) {
    return (this.drawn.series[series]?.values[point] ?? 0) / this.drawn.per;
  }

  /** @param {number} value */
  #x(value) {
    const [low, high] = this.extent;
    const share = this.drawn.scale === "log"
      ? Math.log(Math.max(value, low) / low) / Math.log(high / low) : (value - low) / (high - low);
    return this.left + share * (this.width - this.left - RIGHT);
  }

  /** @param {number} row */
  #y(row) {
    return TOP + (row + 0.5) * this.drawn.row_height;
  }

  /** @param {CanvasRenderingContext2D} context */
  paint(context) {
    const { rows, series, joins, scale, per, row_height } = this.drawn;
    this.#drawAxis(context);
    context.fillStyle = themeColor("text");
    context.textAlign = "right";
    rows.forEach(({ title }, row) => context.fillText(title, this.left - 8, this.#y(row), this.left - 10));
    for (const { row, from, to, color } of joins) {
      context.globalAlpha = 0.45;
      context.fillStyle = color;
      const [left = 0, right = 0] = [from, to].map((value) => this.#x(value / per)).toSorted((a, b) => a - b);
      context.fillRect(left, this.#y(row) - 1.5, right - left, 3);
    }
    context.globalAlpha = 1;
    const paper = themeColor("surface");
    for (const { rows: places, values, mark, color } of series) {
      places.forEach((row, point) => {
        const value = (values[point] ?? 0) / per;
        if (scale === "log" && value <= 0) return;
        drawMark(context, mark, {
          x: this.#x(value), y: this.#y(row), zero: this.#x(0), size: row_height,
          color: color ?? themeColor("text"), paper,
        });
      });
    }
    if (!this.at) return;
    const [x, y] = this.pointOf(this.at);
    context.strokeStyle = themeColor("text");
    context.lineWidth = 2;
    context.beginPath();
    context.arc(x, y, 9, 0, 2 * Math.PI);
    context.stroke();
  }

  /** @param {CanvasRenderingContext2D} context */
  #drawAxis(context) {
    const [low, high] = this.extent;
    const bottom = this.height - FOOT;
    const room = Math.max(Math.floor((this.width - this.left) / TICK), 2);
    const { places, texts } = this.drawn.scale === "log" ? logTicks(low, high) : linearTicks(low, high, room);
    context.fillStyle = themeColor("line");
    for (const row of this.drawn.rows.keys()) context.fillRect(this.left, this.#y(row), this.width - this.left - RIGHT, 1);
    for (const place of places) {
      const width = place === 0 ? 2 : 1;
      context.fillRect(this.#x(place) - width / 2, TOP, width, bottom - TOP + 4);
    }
    context.fillStyle = themeColor("text-2");
    context.textAlign = "center";
    texts.forEach((text, index) => context.fillText(text, this.#x(places[index] ?? 0), bottom + 12));
    context.fillText(this.drawn.axis, (this.left + this.width - RIGHT) / 2, bottom + 29);
  }

  /**
   * @param {number} x
   * @param {number} y
   */
  placeAt(x, y) {
    const row = Math.floor((y - TOP) / this.drawn.row_height);
    let [nearest, distance] = [/** @type {LanePlace | null} */ (null), NEAR];
    for (const place of this.inRow[row] ?? []) {
      const end = this.#x(this.#value(place));
      const isBar = this.drawn.series[place.series]?.mark === "bar";
      const isInside = isBar && (x - end) * (x - this.#x(0)) <= 0;
      // A point takes precedence over the bar under it.
      const away = isInside ? Math.min(Math.abs(x - end), NEAR - 1) : Math.abs(x - end);
      if (away < distance) [nearest, distance] = [place, away];
    }
    return nearest;
  }

  /**
   * @param {number} rows
   * @param {number} columns
   */
  next(rows, columns) {
    const last = this.inRow.length - 1;
    const row = Math.min(Math.max((this.at?.row ?? 0) + (this.at ? rows : 0), 0), last);
    const places = this.inRow[row] ?? [];
    const index = this.at && row === this.at.row ? places.indexOf(this.at) + columns : 0;
    return places[Math.min(Math.max(index, 0), places.length - 1)] ?? this.at;
  }

  /**
   * @param {LanePlace} place
   * @returns {[number, number]}
   */
  pointOf(place) {
    return [this.#x(this.#value(place)), this.#y(place.row)];
  }

  /** @param {LanePlace} place */
  lines({ series, point, row }) {
    return [this.drawn.rows[row]?.name ?? "", ...(this.drawn.series[series]?.notes[point] ?? [])];
  }

  /** @param {LanePlace} place */
  leads({ row }) {
    return typeof this.drawn.rows[row]?.href === "string";
  }

  /** @param {LanePlace} place */
  go({ row }) {
    go(this.drawn.rows[row]?.href ?? null);
  }
}
