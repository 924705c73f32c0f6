// @ts-check
// Draws the timeline on a canvas: names are written with fillText only, never made markup.
import { drawAxis, drawGrid, gridOf } from "./axis.js";
import { HATCHED, INK, hatching, shadesByKind, themeOf } from "./colors.js";
import { AXIS, GUTTER, timeAt, xOf } from "./geometry.js";
import { drawMarks } from "./marks.js";
import { drawPath, drawPathRow } from "./path.js";
import { drawArea, drawBands, drawLinks, drawOutlines, drawPointer, drawTogether } from "./overlay.js";
import { drawSpreads } from "./spreads.js";
import { drawStrip } from "./strips.js";

/** @import { Row, State, Strip, Theme, Tile } from "./types.d.ts" */

const FONT = "11.5px system-ui, 'Liberation Sans', sans-serif";
const MIN_WIDTH = 0.7; // of a block or an event
const MIN_LABELLED = 22; // width of an event that may have its name in it
const MIN_ROOM = 14; // for a name
const MARKS = "marks"; // the kind of a row
const BEFORE_VIEW = { start: 0, span: 1 }; // until it is known what there is to show

const NUMBERED = /^\w+[ #](\d+)$/; // "step 12": the number says most

/**
 * As much of a text as fits, measured once, since most letters are about as wide.
 * @param {string} text
 * @param {number} room
 * @param {(text: string) => number} measure
 */
export function fitting(text, room, measure) {
  const width = measure(text);
  if (width <= room) return text;
  const number = NUMBERED.exec(text)?.[1];
  if (number) return measure(number) <= room ? number : "";
  const letters = Math.floor((text.length * (room - 9)) / width);
  return letters > 2 ? `${text.slice(0, letters)}…` : "";
}

export class TimelinePainter {
  /**
   * colors: by kind of row, from widgets/charts.py; isFromZero: whether the clock is 0 where a step begins.
   * @param {HTMLCanvasElement} canvas
   * @param {Record<string, string>} colors
   * @param {boolean} isFromZero
   */
  constructor(canvas, colors, isFromZero) {
    this.canvas = canvas;
    this.isFromZero = isFromZero;
    this.context = /** @type {CanvasRenderingContext2D} */ (canvas.getContext("2d"));
    this.width = 0;
    this.height = 0;
    this.shades = shadesByKind(colors);
    /** @type {Set<string>} */
    this.drawn = new Set(); // the kinds in sight, for the legend
    /** @type {Map<string, Path2D[]>} */
    this.shapes = new Map(); // to be filled, by kind and shade
    this.hatching = hatching(this.context);
    this.view = BEFORE_VIEW;
    this.x = (/** @type {number} */ time) => xOf(time, this.view, this.plotWidth);
    /** @type {Theme} */
    this.theme = themeOf(canvas);
  }

  /**
   * @param {number} width
   * @param {number} height
   */
  resize(width, height) {
    const ratio = window.devicePixelRatio || 1;
    this.width = width;
    this.height = height;
    this.canvas.width = Math.round(width * ratio);
    this.canvas.height = Math.round(height * ratio);
    this.canvas.style.width = `${width}px`;
    this.canvas.style.height = `${height}px`;
  }

  get plotWidth() {
    return Math.max(this.width - GUTTER, 1);
  }

  /** @param {number} ns */
  lengthOf(ns) {
    return (ns / this.view.span) * this.plotWidth;
  }

  /** @param {number} x */
  timeAt(x) {
    return timeAt(x, this.view, this.plotWidth);
  }

  /** @param {State} state */
  draw(state) {
    this.theme = themeOf(this.canvas);
    const { context, theme, width, height } = this;
    const ratio = window.devicePixelRatio || 1;
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, width, height); // for who records what is drawn
    this.drawn.clear();
    context.fillStyle = theme.surface;
    context.fillRect(0, 0, width, height);
    context.font = FONT;
    context.textBaseline = "middle";
    this.view = state.view ?? BEFORE_VIEW;
    const grid = gridOf(state.view, this.plotWidth, this.isFromZero);
    drawGrid(this, grid);
    this.clip(GUTTER, AXIS, this.plotWidth, height - AXIS, () => {
      drawBands(this, state.bands);
      for (const row of state.rows) if (row.track && !row.pinned) this.#row(row, state.tiles);
      drawArea(this, state);
      drawPath(this, state);
      drawOutlines(this, state);
    });
    this.clip(0, AXIS, width, height - AXIS, () => this.#names(state));
    this.#pinned(state);
    this.clip(GUTTER, AXIS, this.plotWidth, height - AXIS, () => {
      drawTogether(this, state); // after the pinned rows, which it may mark
      drawLinks(this, state);
    });
    drawAxis(this, grid, state);
    drawPointer(this, state);
  }

  /**
   * @param {number} x
   * @param {number} y
   * @param {number} width
   * @param {number} height
   * @param {() => void} paint
   */
  clip(x, y, width, height, paint) {
    const { context } = this;
    context.save();
    context.beginPath();
    context.rect(x, y, width, height);
    context.clip();
    paint();
    context.restore();
  }

  /** @param {Row} row */
  #isInSight({ top, height }) {
    return top + height >= AXIS && top <= this.height;
  }

  /**
   * @param {Row} row
   * @param {Map<string, Tile>} tiles
   */
  #row(row, tiles) {
    if (!row.track || !this.#isInSight(row)) return;
    const tile = tiles.get(row.track.row);
    if (!tile) {
      this.context.fillStyle = this.theme.sunken;
      this.context.fillRect(GUTTER, row.top + 2, this.plotWidth, row.height - 4);
      return;
    }
    if (row.track.kind === MARKS) {
      drawMarks(this, tile, row, this.shades[MARKS][0]);
      this.drawn.add(MARKS);
      return;
    }
    this.#blocks(tile, row, row.track.kind);
    this.#events(tile, row, row.track.kind);
  }

  /**
   * Columns in which short events are merged: as high as the share of the column they cover.
   * @param {Tile} tile
   * @param {Row} row
   * @param {string} kind
   */
  #blocks(tile, { top, height }, kind) {
    const unit = tile.span / tile.columns;
    const bottom = top + height - 1;
    for (let index = 0; index < tile.column.length; index += 1) {
      const left = this.x(tile.start + tile.column[index] * unit);
      if (left > this.width) break;
      const right = this.x(tile.start + (tile.column[index] + 1) * unit);
      if (right < GUTTER) continue;
      const covered = Math.max((tile.share[index] / 1000) * (height - 2), 2);
      const main = tile.categories?.[tile.main?.[index] ?? 0] ?? kind;
      this.#shape(main, 0).rect(left, bottom - covered, Math.max(right - left, MIN_WIDTH), covered);
    }
    this.#fill();
  }

  /**
   * @param {Tile} tile
   * @param {Row} row
   * @param {string} kind
   */
  #events(tile, { top, height }, kind) {
    const { context } = this;
    /** @type {[number, number, string][]} */
    const labels = [];
    for (let index = 0; index < tile.begin.length; index += 1) {
      const left = this.x(tile.start + tile.begin[index]);
      if (left > this.width) break;
      const right = this.x(tile.start + tile.begin[index] + tile.length[index]);
      if (right < GUTTER) continue;
      // A gap to the neighbour, where there is room for one.
      const width = right - left > 4 ? right - left - 1 : Math.max(right - left, MIN_WIDTH);
      const category = tile.categories?.[tile.category?.[index] ?? 0] ?? kind;
      this.#shape(category, tile.name[index] % 3).rect(left, top + 1, width, height - 2);
      const name = tile.labels?.[tile.event[index]] ?? tile.names[tile.name[index]];
      if (name !== undefined && width > MIN_LABELLED) labels.push([left, width, name]);
    }
    this.#fill();
    context.fillStyle = INK;
    for (const [left, width, name] of labels) {
      const from = Math.max(left, GUTTER);
      const room = Math.min(left + width, this.width) - from - 7;
      if (room > MIN_ROOM) context.fillText(this.fitting(name, room), from + 4, top + height / 2 + 0.5);
    }
  }

  /**
   * What is to be filled with a shade of the colour of a kind.
   * @param {string} kind
   * @param {number} shade
   */
  #shape(kind, shade) {
    const known = this.shapes.get(kind) ?? [new Path2D(), new Path2D(), new Path2D()];
    this.shapes.set(kind, known);
    return known[shade];
  }

  #fill() {
    const { context } = this;
    for (const [kind, shapes] of this.shapes) {
      this.drawn.add(kind);
      for (const [shade, shape] of shapes.entries()) {
        context.fillStyle = (this.shades[kind] ?? this.shades.host)[shade];
        context.fill(shape);
        context.fillStyle = this.hatching;
        if (kind === HATCHED) context.fill(shape);
      }
    }
    this.shapes.clear();
  }

  /**
   * @param {string} text
   * @param {number} room
   */
  fitting(text, room) {
    return fitting(text, room, (written) => this.context.measureText(written).width);
  }

  /**
   * Labels before the rows, and the rows that only have a name.
   * @param {State} state
   */
  #names({ rows, strips }) {
    const { context, theme } = this;
    context.fillStyle = theme.surface;
    context.fillRect(0, AXIS, GUTTER, this.height);
    context.fillStyle = theme.line;
    context.fillRect(GUTTER - 1, AXIS, 1, this.height);
    for (const row of rows) {
      if (row.pinned || !this.#isInSight(row)) continue;
      if (row.track) this.#trackName(row);
      else this.#heading(row, strips);
    }
  }

  /** @param {State} state */
  #pinned({ rows, tiles, path }) {
    const { context, theme } = this;
    const pinned = rows.filter((row) => row.pinned);
    const last = pinned.at(-1);
    if (!last) return;
    const bottom = last.top + last.height + 3;
    context.fillStyle = theme.sunken;
    context.fillRect(0, AXIS, this.width, bottom - AXIS);
    this.clip(GUTTER, AXIS, this.plotWidth, bottom - AXIS, () => {
      for (const row of pinned) {
        if (row.type === "path" && path) drawPathRow(this, row, path);
        else if (row.spreads) drawSpreads(this, row, row.spreads);
        else this.#row(row, tiles);
      }
    });
    for (const row of pinned) this.#trackName(row);
    context.fillStyle = theme.accent;
    context.fillRect(0, bottom - 1, this.width, 1);
  }

  /** @param {Row} row */
  #trackName({ label, track, top, height }) {
    const { context, theme } = this;
    context.fillStyle = theme["text-2"];
    context.fillText(this.fitting(label, GUTTER - 34), 26, top + height / 2 + 0.5);
    if (!track) return;
    context.fillStyle = (this.shades[track.kind] ?? this.shades.host)[0];
    context.fillRect(GUTTER - 5, top + 1, 3, height - 2);
  }

  /**
   * @param {Row} row
   * @param {Map<number, Strip>} strips
   */
  #heading(row, strips) {
    const { context, theme } = this;
    const { type, label, note, foldable, folded, top, height } = row;
    const strip = type === "rank" && folded ? strips.get(row.number) : undefined;
    const isRank = type === "rank";
    const indent = isRank ? 8 : 14;
    const middle = top + height / 2 + 0.5;
    context.fillStyle = isRank ? theme.sunken : theme.ground;
    context.fillRect(0, top, this.width, height);
    context.fillStyle = theme.text;
    context.font = isRank ? `600 ${FONT}` : FONT;
    const marker = foldable ? (folded ? "▸" : "▾") : "";
    context.fillText(marker, indent, middle);
    const left = indent + (foldable ? context.measureText(`${marker} `).width : 0);
    const written = this.fitting(label, (strip ? GUTTER : this.width) - 20 - left + indent);
    context.fillText(written, left, middle); // apart: few fonts have the marker
    const end = left + context.measureText(written).width + 18;
    if (strip) drawStrip(this, row, strip);
    context.font = FONT;
    if (note) {
      context.fillStyle = theme["text-2"];
      context.fillText(note, end, middle);
    }
    context.fillStyle = theme.line;
    context.fillRect(0, top, this.width, 1);
  }
}
