// @ts-check
// The timeline: view, selection, and the effects of mouse, keyboard and address.
// mount.js makes one of the page's element for it. Its parts: data.js asks the server and tiles.js
// reads the answers, layout.js places rows, view.js and geometry.js do the arithmetic, painter.js
// draws, panel.js holds the parts around the canvas, pointer.js and input.js handle mouse and
// keyboard, search.js searches.
import { TimelineData } from "./data.js";
import { TimelineAreas } from "./areas.js";
import { bandsOf, flagsOf } from "./evidence.js";
import { AXIS, timeAt } from "./geometry.js";
import { listenToInput } from "./input.js";
import { TimelineLayout } from "./layout.js";
import { blockContent } from "./lists.js";
import { TimelinePainter } from "./painter.js";
import { TimelinePanel } from "./panel.js";
import { TimelinePath } from "./path.js";
import { placeOf } from "./place.js";
import { TimelinePointer } from "./pointer.js";
import { TimelineSearch } from "./search.js";
import { stripTexts } from "./strips.js";
import { TimelineTogether } from "./together.js";
import { ViewHistory, bringingIn, centered, clamped, framed, panned, zoomed } from "./view.js";

/** @import { LinkedTimelines } from "./linked.js" */
/** @import { TimelineNotes } from "./note_marks.js" */
/** @import { Band, Block, Chosen, BriefEvent, EventDetails, Evidence, Flag, Interval, RankRows, Row, View } from "./types.d.ts" */

const EVIDENCE_SHARE = 0.5; // of the view; the same for links from other pages
const BLOCK_SHARE = 0.9;
const MARGIN = 30; // pixels above or below a row that is brought into sight
const FOOT = 8; // pixels below the last row
const AHEAD = 100; // pixels outside of sight, in which rows are asked for

export class Timeline {
  /**
   * @param {HTMLElement} root
   * @param {LinkedTimelines | null} [linked] those that it moves with; then no address holds its view
   */
  constructor(root, linked = null) {
    this.root = root;
    this.linked = linked;
    this.place = placeOf(this);
    const given = (/** @type {string} */ name) => JSON.parse(root.dataset[name] ?? "null");
    /** @type {number[]} */
    this.numbers = given("ranks");
    /** @type {Set<number>} */
    this.opened = new Set(given("opened"));
    this.layout = new TimelineLayout(this.numbers, given("labels"),
      this.opened.size > 1 || linked !== null, given("clocks") ?? undefined);
    /** @type {number[]} */
    this.more = given("more") ?? []; // to be opened if there is room for them
    /** @type {Record<string, string>} */
    this.colors = given("colors");
    this.timeLabel = root.dataset.time ?? "";
    const { base, path, run } = root.dataset;
    this.data = new TimelineData(BigInt(base ?? "0"), () => this.#changed(), path, run);
    this.panel = new TimelinePanel(this, linked !== null);
    this.painter = new TimelinePainter(this.panel.canvas, this.colors, linked !== null);
    this.pointer = new TimelinePointer(this);
    this.search = new TimelineSearch(this);
    this.areas = new TimelineAreas(this);
    this.together = new TimelineTogether(this);
    this.path = new TimelinePath(this);
    /** @type {TimelineNotes | null} */
    this.notes = null; // set where an address holds the view
    this.views = new ViewHistory();
    /** @type {View | null} */
    this.view = null;
    this.showsWhole = false;
    /** @type {Flag[]} */
    this.flags = [];
    /** @type {Band[]} */
    this.bands = [];
    this.frameAsked = 0;
    /** @type {EventDetails | null} */
    this.selected = null;
    /** @type {Block | null} */
    this.block = null;
    /** @type {(Evidence & { rank: number }) | null} */
    this.chosenEvidence = null;
    /** @type {Chosen | null} */
    this.chosen = null; // while it is dragged
    this.forgetSelection();
    this.#listen();
    linked?.add(this);
    this.spreadsRead = this.numbers.length > 1 && !linked ? this.data.loadSpreads(this.layout) : null;
    this.start();
  }

  /** Apply the address, also when the reader goes back. */
  start() {
    return this.place.restore();
  }

  /** Keep the address up to date: a jump makes an entry in the history. */
  note(jump = false) {
    this.place.note(jump);
  }

  extent() {
    return this.linked?.extent() ?? this.data.extent(this.opened);
  }

  // Show what was read.
  #changed() {
    if (this.showsWhole) this.showWhole(); // ranks with new data
    else if (this.view && !this.linked) this.view = clamped(this.view, this.extent());
    if (!this.chosen) this.pointer.again();
    this.refresh();
  }

  /**
   * @param {View} view
   * @param {{ jump?: boolean, whole?: boolean }} [how]
   */
  setView(view, { jump = false, whole = false } = {}) {
    if (this.view && !whole) this.views.note(this.view, performance.now(), jump);
    this.showsWhole = whole; // until the reader zooms or moves
    this.view = clamped(view, this.extent());
    this.pointer.forget();
    this.note(jump);
    this.refresh();
    this.linked?.moved(this, this.view);
  }

  /** @param {View} view that a linked timeline was moved to */
  follow(view) {
    this.showsWhole = false;
    this.view = view;
    this.pointer.forget();
    this.refresh();
  }

  /**
   * @param {number} factor
   * @param {number} [at] the time that stays where it is; the middle of the view
   */
  zoom(factor, at) {
    if (!this.view) return;
    const fixed = at ?? this.view.start + this.view.span / 2;
    this.setView(zoomed(this.view, factor, fixed, this.extent()));
  }

  /** @param {number} share */
  pan(share) {
    if (this.view) this.setView(panned(this.view, share));
  }

  home() {
    this.showWhole({ jump: true });
  }

  showWhole({ jump = false } = {}) {
    const { start, end } = this.linked?.home ?? this.extent();
    this.setView({ start, span: end - start }, { jump, whole: true });
  }

  /** Back to the view before. */
  back() {
    const view = this.views.back();
    if (view) this.setView(view, { jump: true });
    this.views.forgetNote();
  }

  /**
   * @param {number} start
   * @param {number} end
   * @param {number} [share]
   */
  frame(start, end, share) {
    this.setView(framed(start, end, share), { jump: true });
  }

  fit() {
    const { selected, block, chosenEvidence, view } = this;
    if (selected && !selected.length && view) this.setView(centered(view, selected.begin), { jump: true });
    else if (selected) this.frame(selected.begin, selected.begin + selected.length);
    else if (block) this.frame(block.start, block.end, BLOCK_SHARE);
    else if (chosenEvidence) this.frame(chosenEvidence.start, chosenEvidence.end, EVIDENCE_SHARE);
  }

  /** @param {number} x */
  timeAt(x) {
    return this.view ? timeAt(x, this.view, this.painter.plotWidth) : 0;
  }

  get rows() {
    return this.layout.rows;
  }

  /** @param {Row} row */
  fold(row) {
    if (row.type !== "rank") this.layout.fold(row);
    else if (!this.opened.delete(row.number)) {
      this.opened.add(row.number);
      this.data.loadRank(row.number);
    }
    this.refresh();
  }

  /**
   * Unfold the group of a row and bring the row into sight.
   * @param {string} key
   */
  reveal(key) {
    const row = this.layout.rowOf(key, true);
    if (!row) return;
    if (row.folded) {
      this.layout.fold(row);
      this.#place();
    }
    const { y, height } = this.layout.rowOf(key, true) ?? row;
    const { scroller } = this.panel;
    const onTop = this.rows.findLast(({ pinned }) => pinned);
    const covered = onTop ? onTop.y + onTop.height : 0;
    const room = scroller.clientHeight - AXIS;
    if (y < scroller.scrollTop + covered) scroller.scrollTop = y - covered - MARGIN;
    else if (y + height > scroller.scrollTop + room) scroller.scrollTop = y + height - room + MARGIN;
  }

  // Draw anew, once for all that changes until the next frame.
  refresh() {
    this.frameAsked ||= requestAnimationFrame(() => {
      this.frameAsked = 0;
      if (this.root.isConnected) this.#draw();
    });
  }

  #place() {
    const { scroller, spacer } = this.panel;
    const below = this.layout.place(this.opened, this.data.ranks) + AXIS + FOOT;
    this.root.style.setProperty("--rows", `${below}px`); // the height of a linked timeline
    spacer.style.height = `${Math.max(below - scroller.clientHeight, 0)}px`;
    for (const row of this.rows) row.top = AXIS + row.y - (row.pinned ? 0 : scroller.scrollTop);
  }

  #draw() {
    const { scroller } = this.panel;
    const [width, height] = [scroller.clientWidth, scroller.clientHeight];
    if (width !== this.painter.width || height !== this.painter.height) {
      this.painter.resize(width, height);
    }
    this.#place();
    this.flags = flagsOf(this.opened, this.data.ranks, this.chosenEvidence);
    this.bands = bandsOf(this.flags, this.rows, this.chosenEvidence);
    this.painter.draw({
      view: this.view,
      rows: this.rows,
      rowOf: (key) => this.layout.rowOf(key),
      tiles: this.data.tiles,
      flags: this.flags,
      bands: this.bands,
      hover: this.pointer.hover ?? this.block,
      selected: this.selected,
      pointerX: this.pointer.x,
      chosen: this.chosen,
      timeLabel: this.timeLabel,
      strips: this.data.strips,
      area: this.areas.area,
      together: this.together.shown,
      path: this.path.shown,
      clocks: this.layout.clocks,
      hits: this.data.hits,
      notes: this.notes?.marks ?? [],
    });
    this.panel.showLegend(this.painter.drawn);
    if (!this.view) return;
    const nearby = this.rows.filter((row) =>
      row.top + row.height > AXIS - AHEAD && row.top < height + AHEAD);
    for (const number of this.layout.withoutHost) this.data.loadRank(number, "host");
    const keys = nearby.flatMap((row) => (row.track ? [row.track.row] : []));
    const folded = nearby.filter((row) => row.type === "rank" && row.folded);
    this.panel.describeStrips(stripTexts(folded, this.data.strips));
    this.data.showStrips(folded.map((row) => row.number), this.view, this.painter.plotWidth);
    this.data.show(keys, this.view, this.painter.plotWidth);
    this.data.showHits(this.numbers, this.panel.query.value, this.view, this.painter.plotWidth);
    const { failure } = this.data;
    this.root.dataset.state = failure ? "failed" : "ready";
    if (failure) this.panel.showMessage(`The dashboard cannot be reached: ${failure}`);
  }

  forgetSelection() {
    this.selected = null;
    this.search.order = null;
    this.block = null;
    this.chosenEvidence = null;
    this.chosen = null;
    this.areas.area = null;
    this.together.forget();
    this.panel.showNothing();
  }

  deselect() {
    this.forgetSelection();
    this.note();
    this.refresh();
  }

  /**
   * go: bring it into view; scroll: bring its row into sight.
   * @param {string} id
   * @param {{ go?: boolean, scroll?: boolean }} [how]
   */
  async select(id, { go = false, scroll = false } = {}) {
    const rank = Number(id.split(".")[0]);
    let event;
    try {
      if (!this.opened.has(rank) && this.numbers.includes(rank)) this.opened.add(rank);
      await this.data.loadRank(rank);
      event = await this.data.event(id);
      await this.data.loadRank(rank, "host"); // the server has read it for the event
    } catch (error) {
      this.panel.showMessage(/** @type {Error} */ (error).message);
      return;
    }
    this.forgetSelection();
    this.selected = event;
    this.panel.showEvent(event);
    if (go) this.#bringIntoView({ start: event.begin, end: event.begin + event.length });
    else this.note();
    if (go || scroll) {
      this.#place();
      this.reveal(event.row);
    }
    this.refresh();
  }

  /** @param {Interval} interval */
  #bringIntoView(interval) {
    const view = this.view && bringingIn(this.view, interval, this.painter.plotWidth);
    if (view) this.setView(view, { jump: true });
    else this.note(true);
  }

  /** @param {Block} block */
  async selectBlock(block) {
    this.forgetSelection();
    this.block = block;
    this.refresh();
    const summary = await this.data.answer("block", { row: block.row, start: block.start, end: block.end });
    if (this.block !== block) return;
    if (summary.id) this.select(summary.id);
    else this.panel.show(...blockContent(block, summary, this));
    this.note();
  }

  /**
   * @param {number} rank
   * @param {Evidence} evidence
   */
  chooseEvidence(rank, evidence) {
    this.forgetSelection();
    this.chosenEvidence = { ...evidence, rank };
    const { rows, findings } = this.data.ranks.get(rank) ?? { rows: [] };
    const ofFinding = this.#evidenceOf(rank, evidence);
    const brief = findings?.[evidence.number] ?? { title: "", advice: [], gain: "" };
    this.panel.showEvidence(rank, ofFinding, ofFinding.findIndex((one) => one.evidence === evidence.evidence), brief);
    // Most findings are about GPU operations: the GPU's last row, and those above it.
    const last = rows.findLast((row) => row.source === "op");
    const reveal = () => {
      this.#place();
      if (last) this.reveal(last.row);
      this.refresh();
    };
    reveal();
    return evidence.operation && !this.linked ? this.together.reveal(evidence.operation, reveal) : undefined;
  }

  /**
   * @param {number} rank
   * @param {Evidence} evidence
   */
  #evidenceOf(rank, { number }) {
    return (this.data.ranks.get(rank)?.evidence ?? []).filter((other) => other.number === number);
  }

  /**
   * Show the next or the previous evidence of the finding that is shown; after the last comes the first.
   * @param {number} step
   */
  otherEvidence(step) {
    const { chosenEvidence: shown } = this;
    if (!shown) return;
    const all = this.#evidenceOf(shown.rank, shown);
    const place = all.findIndex(({ evidence }) => evidence === shown.evidence);
    const other = all[(place + step + all.length) % all.length];
    if (other) this.showEvidence(shown.rank, other);
  }

  /**
   * @param {number} rank
   * @param {Evidence} evidence
   */
  showEvidence(rank, evidence) {
    const revealed = this.chooseEvidence(rank, evidence);
    this.frame(evidence.start, evidence.end, EVIDENCE_SHARE);
    return revealed;
  }

  #listen() {
    listenToInput(this);
    new ResizeObserver(() => this.refresh()).observe(this.panel.scroller);
    this.panel.scroller.addEventListener("scroll", () => this.refresh());
  }
}
