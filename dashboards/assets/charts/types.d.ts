// What pages write for the charts, and what every chart can do. Columns of results have the names and
// the units that they have in JSON: `_ns` is nanoseconds, and charts show milliseconds.

export interface Mounted {
  /** Draw again, in the colours of the theme. */
  redraw(): void;
  /** Release everything: the element is gone, or to be drawn anew. */
  dispose?(): void;
}

/** What a chart on a canvas of its own draws; `Place` is a thing under the pointer, such as a cell. */
export interface Picture<Place> {
  /** Of the whole, in pixels. */
  readonly height: number;
  /** Draws everything, in pixels of the page. */
  paint(context: CanvasRenderingContext2D): void;
  placeAt(x: number, y: number): Place | null;
  /** The place that an arrow key selects. */
  next(rows: number, columns: number): Place | null;
  /** The point beside which the note of a place stands. */
  pointOf(place: Place): [number, number];
  /** What the note of a place says. */
  lines(place: Place): string[];
  /** Whether a click on a place leads to a page. */
  leads(place: Place): boolean;
  go(place: Place): void;
}

export interface Drawn {
  kind: string;
}

/** Where the columns of a row lead: an address, and the times from `base` that are put into it. */
export interface Places {
  title: string;
  href: string | null;
  start_ns: number[];
  end_ns: number[];
}

/** A piece of a row, such as a step. */
export interface RowPlace {
  row: number;
  index: number;
}

/** Where a row is drawn, in pixels, and where its values are. */
export interface Box {
  left: number;
  top: number;
  width: number;
  height: number;
  x(value: number): number;
  y(value: number): number;
}

/** What rows above one axis have in common. */
export interface RowsOptions<Row> {
  axis: string;
  /** Of a row, in pixels. */
  height: number;
  range: [number, number];
  /** Whether there is nothing between whole numbers on the axis, and in the rows. */
  isWhole: boolean;
  counts: boolean;
  title(row: Row): string;
  unit(row: Row): string;
  /** The value at the upper end of a row. */
  top(row: Row): number;
  /** Where the pieces of a row stand on the axis, ascending. */
  places(row: Row): number[];
  /** The one at a value of the axis. */
  under(row: Row, value: number): number;
  lines(row: Row, index: number): string[];
  paint(context: CanvasRenderingContext2D, row: Row, box: Box): void;
  open?(row: Row, index: number): void;
  choose(from: number, to: number): void;
  chooseAll(): void;
}

export type Values = (number | null)[];

export type Part = "compute_ns" | "exposed_communication_ns" | "exposed_copy_ns" | "idle_ns";

/** Bars of one step each, or of the mean of several; `step` is their place on the axis. */
export interface StackRow extends Places, Record<Part, number[]> {
  step: number[];
  labels: string[];
  shortest_ns: number[];
  longest_ns: number[];
  /** Bars that hold a slow step: its number, and why it is slow. */
  slow: { bar: number; number: string; why: string }[];
}

export interface Stacks extends Drawn {
  axis: string;
  base: string;
  /** From the bottom. */
  parts: { field: Part; name: string; color: string }[];
  rows: StackRow[];
}

export interface HeatRow extends Places {
  length_ns: Values;
}

export interface Heat extends Drawn {
  axis: string;
  base: string;
  color: string;
  low: number;
  high: number;
  /** What stands before the value of a cell, and in place of one of 0. */
  before: string;
  zero: string;
  step: number[];
  labels: string[];
  rows: HeatRow[];
}

/** A row over the axis of time: from `start` to `end`, ns from the chart's `base`. */
export interface TimeRow {
  title: string;
  unit: string;
  color: string;
  start: number;
  end: number;
  /** A dashed line, and what it is. */
  limit: number | null;
  limit_text: string | null;
}

/** What is drawn of rows over time, and said of their pieces. */
export interface RowKind<Row extends TimeRow> {
  height: number;
  /** Its height where there are many. */
  low: number;
  legend(rows: Row[]): (string | Node)[];
  /** Whether its values are whole numbers. */
  counts: boolean;
  top(row: Row): number;
  /** Where the pieces begin and the last one ends: seconds. */
  times(row: Row): number[];
  lines(row: Row, index: number): string[];
  paint(context: CanvasRenderingContext2D, row: Row, box: Box): void;
}

export interface RateRow extends TimeRow {
  /** Of the pieces of the row, which are equally long. */
  mean: Values;
  most: Values;
  most_name: string;
}

export interface DepthRow extends TimeRow {
  /** ns from `base`: when each piece begins, and the last one ends. */
  times: number[];
  least: number[];
  most: number[];
  /** Pieces in which the host was blocked, ns from `base`, and for which share of each. */
  blocked: { starts: number[]; ends: number[]; shares: number[] };
  blocked_color: string;
}

export interface MatrixRow {
  title: string;
  name: string;
  values: Values;
  texts: (string | null)[];
  /** What is said of a cell in place of its text. */
  notes: (string | null)[] | null;
  /** Those of a machine. */
  ranks?: number[];
}

export interface Matrix extends Drawn {
  axis: string;
  side: string;
  color: string;
  high: number;
  /** Between the names of row and column: "waited for". */
  between: string;
  columns: { title: string; name: string; ranks?: number[] }[];
  rows: MatrixRow[];
}

export type LaneMark = "bar" | "dot" | "ring" | "tick" | "diamond";

export interface Lanes extends Drawn {
  axis: string;
  scale: "linear" | "log";
  row_height: number;
  rows: { title: string; name: string; href: string | null }[];
  /** By what values are divided for the axis: 1e6 for ns on one of ms. */
  per: number;
  /** Points by their row; a colour of null is that of text. */
  series: {
    name: string; mark: LaneMark; color: string | null; rows: number[]; values: number[]; notes: string[][];
  }[];
  joins: { row: number; from: number; to: number; color: string }[];
}
