// What the parts of the timeline hand to each other. Times are ns from the page's base.

import type { TimelinePainter } from "./painter.js";

export interface View { start: number; span: number }

export interface Interval { start: number; end: number }

/** A row of events, as dashboards/timeline/server.py describes it. */
export interface Track {
  row: string;
  group: string;
  label: string;
  kind: string;
  source: string;
  events: number;
  folded: boolean;
}

/** An interval of a finding's evidence. */
export interface Evidence extends Interval {
  finding: string;
  number: number;
  evidence: number;
  severity: Severity;
  label: string;
  /** Of a straggler: the communication kernel to which it came late. */
  operation: string | null;
}

export interface Flag extends Evidence { rank: number; source: Evidence; chosen: boolean }

/** A note of the reader's own on the axis: its time, the address of its view, and its text. */
export interface NoteMark { at: number; href: string; lines: string[] }

export interface Band extends Flag { top: number; bottom: number }

/** What is known of a rank. */
export interface RankRows {
  state: "loading" | "ready" | "failed";
  /** Whether the rows of its host are there. */
  host?: boolean;
  error?: string;
  start?: number;
  end?: number;
  rows: Track[];
  evidence: Evidence[];
  /** By number, of those with evidence. */
  findings?: Record<number, FindingBrief>;
}

/** What a finding says, and what to do about it. */
export interface FindingBrief { title: string; advice: string[]; gain: string }

/** The clocks of the ranks: how well they compare with the run's, and panels of those that do not. */
export interface Clocks {
  uncertainty: Record<number, number>;
  panels: { ranks: number[]; why: string }[];
}

/** A row on the screen: `y` within all rows, `top` on the canvas. */
export interface Row {
  type: "rank" | "panel" | "group" | "track" | "message" | "path" | "spreads";
  y: number;
  top: number;
  height: number;
  label: string;
  number: number;
  track?: Track;
  key?: string;
  folded?: boolean;
  foldable?: boolean;
  note?: string;
  hides?: Track[];
  /** Of the row of all ranks. */
  spreads?: Spread[];
  /** Whether it stays on top of the others. */
  pinned?: boolean;
}

/** What a reply shows of one row: see dashboards/timeline/tiles.py. */
export interface TileReply {
  columns: number;
  column: number[];
  share: number[];
  count: number[];
  begin: number[];
  length: number[];
  name: number[];
  event: number[];
  names: Record<string, string>;
  /** By event, where it says more than its name. */
  labels: Record<string, string>;
  /** Of kernels that compute; with the index of each event's, and of what takes most of each block. */
  categories?: string[];
  category?: number[];
  main?: number[];
}

export interface Tile extends TileReply { start: number; span: number; asked: number; viewSpan: number }

/** What is drawn at a place: an event, or a block of short ones. */
export interface Shown extends Interval { event?: number; share?: number }

export interface Hit extends Shown { row: string; id?: string }

export interface Block extends Interval { row: string; share: number }

/** An event, without what is known of it beyond its place. */
export interface BriefEvent {
  id: string;
  row: string;
  group: string;
  kind: string;
  /** Of a kernel that computes. */
  category: string | null;
  name: string;
  label: string;
  start: string;
  end: string;
  duration: string;
  begin: number;
  length: number;
}

/** How it is linked to the event that is described. */
export interface LinkedEvent extends BriefEvent {
  relation: "launched by" | "launched" | "waited for" | "awaited by";
}

export interface EventDetails extends BriefEvent {
  facts: [string, string][];
  links: LinkedEvent[];
}

export interface Summary {
  count: number;
  num_names: number;
  id?: string;
  /** Of a counter: what was sampled. */
  said?: string[];
  names: { name: string; count: number; total: string; longest: string }[];
}

export interface Matches {
  count: number;
  num_names: number;
  names: { label: string; count: number }[];
  next: { id: string; start: string; number: number } | null;
  /** Whether calls and ranges are read already. */
  is_all: boolean;
}

/** An event that is found; null is what it has not, or what is not known. */
export interface FoundEvent {
  id: string;
  name: string;
  /** ns */
  duration: number | null;
  rank: number;
  step: number | null;
  bytes: number | null;
  start: string;
  /** The innermost range or module of the program that it was launched in. */
  place: string | null;
}

export interface Found { count: number; is_all: boolean; events: FoundEvent[] }

/** Columns of a view in which something begins that is searched for. */
export interface Hits extends View { text: string; isAll: boolean; columns: number[]; count: number }

export interface Grid { list: { at: number; label: string }[]; anchor: string | null }

/** The colours of the page, by their names in style.css. */
export type Theme = Record<"ground" | "surface" | "sunken" | "line" | "text" | "text-2" | "accent" |
  "focus" | "highlight" | Severity, string>;

/** What a finding's flags are coloured by. */
export type Severity = "high" | "medium" | "low" | "info";

/** Adds a row below those that are placed. */
export type Add = (type: Row["type"], height: number, row: Omit<Row, "type" | "y" | "top" | "height">) => void;

/** All that is drawn. */
export interface State {
  view: View | null;
  rows: Row[];
  rowOf: (key: string) => Row | undefined;
  tiles: Map<string, Tile>;
  flags: Flag[];
  bands: Band[];
  hover: (Interval & { row: string }) | null;
  selected: EventDetails | null;
  pointerX: number | null;
  chosen: Chosen | null;
  timeLabel: string;
  strips: Map<number, Strip>;
  area: Area | null;
  together: Together | null;
  path: StepPath | null;
  clocks: Clocks;
  hits: Hits | null;
  notes: NoteMark[];
}

export type Draw = (painter: TimelinePainter, state: State) => void;

/** What is being dragged over: all rows, or those between two heights. */
export interface Chosen { from: number; to: number; top?: number; bottom?: number }

/** Whose critical path is asked for: that of steps, as 3 or 2-5, or of those in a time of a rank. */
export type PathWhere = { step: string } | { rank: number } & Interval;

/** Calls and operations, one behind the other, that a step could not be shorter without. */
export interface PathPart {
  rank: number;
  kind: string;
  name: string;
  start: string;
  begin: number;
  length: number;
  /** Where it ran; null for what the host did, and for delays. */
  row: string | null;
}

export interface StepPath {
  step: string;
  rank: number;
  length: number;
  numParts: number;
  kinds: { kind: string; ns: number }[];
  parts: PathPart[];
}

/** See dashboards/timeline/across_ranks.py. */
export type PathReply = { state: "asked"; step: string } | { state: "unknown"; step: string; why: string } | {
  state: "known";
  step: string;
  rank: number;
  length: string;
  num_parts: number;
  kinds: Record<string, string>;
  parts: Omit<PathPart, "begin">[];
};

/** How far the ranks are apart in a step, or in how they come to a collective (then `least` is 0). */
export interface SpreadReply {
  name: string;
  start: string;
  end: string;
  /** ns, like `median` and `most`, which is that of `rank` */
  least: number;
  median: number;
  most: number;
  rank: number;
  /** Who came latest to an operation, and how long after the median of the others. */
  late: { rank: number; length: number; id: string } | null;
}

export interface Spread extends SpreadReply { begin: number; stop: number }

/** What a folded rank did in a view: by kind, how much of each column, in thousandths. */
export interface Strip extends View { shares: Record<string, number[]> }

/** Rows, by key, in a piece of time. */
export interface Area extends Interval { rows: string[] }

export interface Statistics {
  count: number;
  num_names: number;
  names: { source: string; name: string; count: number; total: string; longest: string; share: number }[];
  rows: { row: string; count: number; busy: string; idle: string }[];
}

export interface Listed {
  count: number;
  events: { id: string; row: string; label: string; start: string; duration: string }[];
}

export interface Member {
  rank: number;
  id: string;
  row: string | null;
  start: string;
  end: string;
  wait: string | null;
}

/** One collective on all of its ranks; `last` came last. */
export interface Collective {
  operation: string;
  group: string | null;
  last: number | null;
  num_members: number;
  members: Member[];
}

export interface Together extends Collective {
  members: (Member & { begin: number; length: number; isLast: boolean })[];
}

/** What the server answers, by the ends of its addresses. */
export interface Answers {
  /** Time in an area, by name. */
  area: Statistics;
  /** Many events in a piece of a row. */
  block: Summary;
  /** One collective on all of its ranks, by one of its kernels. */
  collective: Collective;
  /** The events of an area one by one. */
  events: Listed;
  /** The first of what is found, in an order: a column, with a minus the largest first. */
  matches: Found;
  /** The event of the same name after or before one, on its rank; after the last comes the first. */
  namesake: { id: string | null };
  /** The event after or before one in its row. */
  neighbour: { id: string | null };
  /** The critical path of steps, or the news that it is being computed. */
  path: PathReply;
}
