// What dashboards/figures writes for the charts, and what every chart can do.

export interface Chart {
  /** Draw again, in the colours of the theme. */
  redraw(): void;
  /** Let go of everything: the element is gone, or to be drawn anew. */
  dispose(): void;
}

export interface Drawn {
  kind: string;
}

/** Where the columns of a row lead: an address, and the times from `base` that are put into it. */
export interface Places {
  title: string;
  href: string;
  starts: number[];
  ends: number[];
}

export type Values = (number | null)[];

export interface StackRow extends Places {
  x: number[];
  labels: string[];
  /** By part, from the bottom. */
  parts: Values[];
  least: number[];
  most: number[];
}

export interface Stacks extends Drawn {
  unit: string;
  axis: string;
  base: string;
  parts: { name: string; color: string }[];
  rows: StackRow[];
}

export interface HeatRow extends Places {
  values: Values;
}

export interface Heat extends Drawn {
  unit: string;
  axis: string;
  base: string;
  color: string;
  low: number;
  high: number;
  x: number[];
  labels: string[];
  rows: HeatRow[];
}

export interface RateRow {
  title: string;
  unit: string;
  color: string;
  /** ns from `base`, of all pieces together, which are equally long. */
  start: number;
  end: number;
  mean: Values;
  most: Values;
  most_name: string;
  peak: number | null;
  peak_text: string | null;
}

export interface Rates extends Drawn {
  axis: string;
  base: string;
  rows: RateRow[];
}
