// @ts-check
// Places of the timeline's rows: ranks, and in them groups of tracks that can be folded.
import { Arrangement } from "./arrangement.js";
import { AXIS } from "./geometry.js";
import { counted, duration } from "./time.js";

/** @import { Timeline } from "./timeline.js" */
/** @import { Add, Clocks, RankRows, Row, Spread, Track } from "./types.d.ts" */

const HEIGHTS = { rank: 28, panel: 30, group: 22, message: 30, gpu: 24, host: 15, path: 20, spreads: 44 };
/** @type {Clocks} */
const ONE_CLOCK = { uncertainty: {}, panels: [] };
const GAP = 2; // below a track
const HEAD = 5; // above the first track, where no rank's name stands there
const HIGH = new Set(["op", "sample", "place"]); // sources of what GPUs and links did

export class TimelineLayout {
  /**
   * numbers: of the ranks; labels: by number; compares: whether several ranks are chosen: then
   * only GPU rows are shown at first; clocks: of the ranks.
   * @param {number[]} numbers
   * @param {Record<number, string>} labels
   * @param {boolean} compares
   * @param {Clocks} clocks
   */
  constructor(numbers, labels, compares, clocks = ONE_CLOCK) {
    this.clocks = clocks;
    this.numbers = clocks.panels.length > 1 ? clocks.panels.flatMap(({ ranks }) => ranks) : numbers;
    this.labels = labels;
    this.compares = compares;
    /** @type {Set<number>} */
    this.gpuOnly = new Set(); // ranks that show only their GPU rows at first
    this.arrangement = new Arrangement();
    this.hasPath = false; // whether the critical path has its row
    /** @type {Spread[]} */
    this.spreads = []; // of all ranks, which have a row
    /** @type {string[]} */
    this.together = []; // rows of one collective, which stay on top
    /** @type {Map<string, boolean>} */
    this.folds = new Map(); // by group: whether the reader folded it
    /** @type {Row[]} */
    this.rows = [];
  }

  /**
   * Open ranks as long as the rows of their GPUs fit into the window, and the names of all ranks below
   * them, unless these alone would take half of it.
   * @param {Timeline} timeline
   * @param {number[]} numbers the worst first
   */
  async openMore(timeline, numbers) {
    const { data, panel } = timeline;
    if (!numbers.length) return;
    await Promise.all([timeline.spreadsRead, ...[...timeline.opened].map((number) => data.loadRank(number, "host"))]);
    const room = panel.scroller.clientHeight - AXIS;
    const withNames = HEIGHTS.rank * this.numbers.length < room / 2;
    for (const number of numbers) {
      await data.loadRank(number);
      this.gpuOnly.add(number);
      const opened = new Set([...timeline.opened, number]);
      const bottom = this.place(opened, data.ranks);
      const last = this.rows.findLast((row) => row.number === number) ?? { y: bottom, height: 0 };
      if ((withNames ? bottom : last.y + last.height) > room) {
        this.gpuOnly.delete(number);
        break;
      }
      timeline.opened = opened;
    }
    timeline.refresh();
  }

  /** @param {number} number */
  #hidesHost(number) {
    return this.compares || this.gpuOnly.has(number);
  }

  /**
   * Lay out the rows of all ranks, each with its place `y`; returns their height together.
   * @param {Set<number>} opened
   * @param {Map<number, RankRows>} ranks
   */
  place(opened, ranks) {
    this.rows = [];
    let y = 0;
    /** @type {Add} */
    const add = (type, height, row) => {
      this.rows.push({ type, y, top: y, height, ...row });
      y += height + (type === "track" ? GAP : 0);
    };
    if (this.hasPath) {
      add("path", HEIGHTS.path, { label: "critical path", number: -1, pinned: true });
    }
    if (this.spreads.length) {
      const most = Math.max(...this.spreads.map((spread) => spread.most));
      const label = `all ranks · to ${duration(most)}`;
      add("spreads", HEIGHTS.spreads, { label, number: -1, pinned: true, spreads: this.spreads });
    }
    const onTop = new Set([...this.arrangement.pinned, ...this.together]);
    for (const key of onTop) this.#placePinned(key, ranks, add);
    if (this.rows.length) y += 4;
    else if (this.numbers.length === 1) y += HEAD;
    for (const number of this.numbers) {
      this.#placePanel(number, add);
      const folded = !opened.has(number);
      if (this.numbers.length > 1) {
        const label = this.labels[number] ?? `rank ${number}`;
        const ns = this.clocks.uncertainty[number]; // how well its clock compares with the run's
        add("rank", HEIGHTS.rank,
          { label, number, folded, foldable: true, note: folded ? "" : ns ? `clock ± ${duration(ns)}` : "" });
      }
      const rank = ranks.get(number);
      const message = this.#message(number, rank);
      if (folded) continue;
      if (message || !rank) add("message", HEIGHTS.message, { label: message ?? "", number });
      else {
        this.#placeRank(number, rank.rows, add);
        if (!rank.host) this.#placeHost(number, add);
      }
    }
    return y;
  }

  /**
   * The heading of a panel: of ranks whose clock cannot be compared with the others'.
   * @param {number} number of a rank, the first of its panel
   * @param {Add} add
   */
  #placePanel(number, add) {
    const panel = this.clocks.panels.find(({ ranks }) => ranks[0] === number);
    if (!panel?.why) return;
    const label = `On a clock of their own, not comparable with the ranks above: ${panel.why}`;
    add("panel", HEIGHTS.panel, { label, number: -1 });
  }

  /**
   * @param {number} number
   * @param {RankRows | undefined} rank
   */
  #message(number, rank) {
    if (rank?.state === "failed") return rank.error;
    if (rank?.state !== "ready") return `Reading the rows of rank ${number} …`;
    return rank.rows.length || !rank.host ? null : "This report holds no event of this rank.";
  }

  /**
   * @param {string} key of a track
   * @param {Map<number, RankRows>} ranks
   * @param {Add} add
   */
  #placePinned(key, ranks, add) {
    const number = Number(key.split(".")[0]);
    const track = ranks.get(number)?.rows.find(({ row }) => row === key);
    if (!track) return;
    const label = this.numbers.length > 1 ? `rank ${number} · ${track.label}` : track.label;
    const height = HIGH.has(track.source) ? HEIGHTS.gpu : HEIGHTS.host;
    add("track", height, { label, track, number, pinned: true });
  }

  /**
   * A placeholder for the host's threads until they are read.
   * @param {number} number
   * @param {Add} add
   */
  #placeHost(number, add) {
    const key = `${number} host`;
    const folded = this.folds.get(key) ?? this.#hidesHost(number);
    add("group", HEIGHTS.group, { label: "host threads", key, folded, foldable: true, number });
    if (!folded) {
      add("message", HEIGHTS.message, { label: "Reading what the host did …", number });
    }
  }

  /**
   * @param {number} number
   * @param {Track[]} tracks
   * @param {Add} add
   */
  #placeRank(number, tracks, add) {
    let group = "";
    for (const track of this.arrangement.ordered(tracks)) {
      const key = `${number} ${track.group}`;
      const isGpu = HIGH.has(track.source);
      const closed = track.folded || (this.#hidesHost(number) && !isGpu);
      const folded = track.group !== "" && (this.folds.get(key) ?? closed);
      if (track.group !== group && track.group !== "") {
        const hides = tracks.filter((other) => other.group === track.group);
        const events = hides.reduce((sum, hidden) => sum + hidden.events, 0);
        const note = folded ? counted(events, "event") : "";
        add("group", HEIGHTS.group,
          { label: track.group, key, folded, foldable: true, number, note, hides });
      }
      group = track.group;
      if (!folded && !this.arrangement.hidden.has(track.row)) {
        add("track", isGpu ? HEIGHTS.gpu : HEIGHTS.host, { label: track.label, track, number });
      }
    }
  }

  /**
   * The row of a track; if that is folded, the row of its group.
   * @param {string} key
   * @param {boolean} [isInPlace] whether the row is wanted that is not on top
   */
  rowOf(key, isInPlace = false) {
    return this.rows.find((row) => !(isInPlace && row.pinned) && (row.track
      ? row.track.row === key
      : row.folded && row.hides?.some((track) => track.row === key)));
  }

  // The ranks that are open and whose hosts' rows are missing.
  get withoutHost() {
    return this.rows.filter((row) => row.type === "group" && row.key === `${row.number} host` &&
      !row.folded).map((row) => row.number);
  }

  /** @param {Row} group */
  fold(group) {
    if (group.key) this.folds.set(group.key, !group.folded);
  }
}
