// The timeline: what is in view, what is selected, and what mouse, keyboard and address do to it.
// mount.js makes one of the page's element for it. Its parts: data.js asks the server and tiles.js
// reads what it answers, layout.js says which row stands where, view.js and geometry.js do the
// arithmetic, painter.js draws, panel.js is what stands around, pointer.js and input.js are mouse
// and keyboard, search.js searches.
import { withTimeline } from "../address.js";
import { TimelineData } from "./data.js";
import { AXIS, timeAt } from "./geometry.js";
import { listenToInput } from "./input.js";
import { TimelineLayout } from "./layout.js";
import { TimelinePainter } from "./painter.js";
import { TimelinePanel } from "./panel.js";
import { TimelinePointer } from "./pointer.js";
import { TimelineSearch } from "./search.js";
import { bringingIn, clamped, extentOf, framed, holds, panned, zoomed } from "./view.js";

const NOTE_MS = 250;
const EVIDENCE_SHARE = 0.5; // of the view; the same for links from other pages
const BLOCK_SHARE = 0.9;
const LINK_SHARE = 0.8;
const MARGIN = 30; // pixels above or below a row that is brought into sight
const FOOT = 8; // pixels below the last row
const AHEAD = 100; // pixels outside of sight, in which rows are asked for

const parameter = (name) => new URLSearchParams(location.search).get(name);
const isNumber = (text) => text !== null && /^-?\d{1,19}$/.test(text);

export class Timeline {
  constructor(root) {
    this.root = root;
    this.numbers = JSON.parse(root.dataset.ranks);
    this.opened = new Set(JSON.parse(root.dataset.opened));
    this.layout = new TimelineLayout(
      this.numbers, JSON.parse(root.dataset.labels), this.opened.size > 1);
    this.colors = JSON.parse(root.dataset.colors);
    this.timeLabel = root.dataset.time;
    this.data = new TimelineData(BigInt(root.dataset.base), () => {
      if (!this.chosen) this.pointer.again();
      this.refresh();
    });
    this.panel = new TimelinePanel(root, this.colors, {
      color: (kind) => this.colors[kind],
      search: (direction) => this.search.go(direction),
      searchFor: (label) => this.search.goTo(label),
      follow: (event) => this.follow(event),
      evidence: (rank, evidence) => this.showEvidence(rank, evidence),
      zoom: (factor) => this.view && this.zoom(factor, this.view.start + this.view.span / 2),
      fit: () => this.fit(),
      home: () => this.view && this.home(),
    });
    this.painter = new TimelinePainter(this.panel.canvas, this.colors);
    this.pointer = new TimelinePointer(this);
    this.search = new TimelineSearch(this);
    this.view = null;
    this.marks = this.bands = [];
    this.forgetSelection();
    this.#listen();
    this.start();
  }

  // -- the address ------------------------------------------------------------------------------

  // Show what the address says; again when the reader goes back.
  async start() {
    this.forgetSelection();
    this.panel.query.value = parameter("search") ?? "";
    this.panel.forgetMatches();
    this.panel.showMessage("Reading the rows …");
    const ranks = await Promise.all([...this.opened].map((number) => this.data.loadRank(number)));
    this.panel.showNothing();
    const [start, end] = ["start", "end"].map((name) =>
      isNumber(parameter(name)) ? this.data.toOffset(parameter(name)) : null);
    const extent = this.extent();
    const from = start ?? extent.start;
    this.setView({ start: from, span: (end ?? extent.end) - from });
    const select = parameter("select");
    const finding = parameter("finding");
    if (select) await this.select(select, { scroll: true });
    else if (finding) {
      const index = Number(parameter("evidence") ?? 0);
      const named = (ranks[0]?.evidence ?? []).filter((evidence) =>
        evidence.finding === finding && evidence.evidence === index);
      // A rank can have the same finding of several links: what is in view is meant.
      const shown = named.find((evidence) => holds(this.view, evidence)) ?? named[0];
      if (shown) this.chooseEvidence([...this.opened][0], shown);
    }
    if (this.panel.query.value) this.search.count();
  }

  // Keep the address up to date: a jump can be undone by going back, a movement is only noted.
  note(jump = false) {
    clearTimeout(this.noting);
    if (!this.view) return;
    const write = () => {
      if (!this.root.isConnected) return;
      const href = withTimeline(location.href, {
        start: this.data.toTime(this.view.start),
        end: this.data.toTime(this.view.start + Math.max(this.view.span, 1)),
        select: this.selected?.id ?? null,
        finding: this.chosenEvidence?.finding ?? null,
        evidence: this.chosenEvidence?.evidence ?? null,
        search: this.panel.query.value || null,
      });
      history[jump ? "pushState" : "replaceState"](history.state, "", href);
    };
    if (jump) write();
    else this.noting = setTimeout(write, NOTE_MS);
  }

  // -- the view ---------------------------------------------------------------------------------

  extent() {
    return extentOf([...this.opened].map((number) => this.data.ranks.get(number)));
  }

  setView(view, { jump = false } = {}) {
    this.view = clamped(view, this.extent());
    this.pointer.forget();
    this.note(jump);
    this.refresh();
  }

  zoom(factor, at) {
    this.setView(zoomed(this.view, factor, at, this.extent()));
  }

  pan(share) {
    this.setView(panned(this.view, share));
  }

  home() {
    const { start, end } = this.extent();
    this.setView({ start, span: end - start }, { jump: true });
  }

  // Have a piece of time fill so much of the view.
  frame(start, end, share) {
    this.setView(framed(start, end, share), { jump: true });
  }

  fit() {
    const { selected, block, chosenEvidence } = this;
    if (selected) this.frame(selected.begin, selected.begin + selected.length);
    else if (block) this.frame(block.start, block.end, BLOCK_SHARE);
    else if (chosenEvidence) this.frame(chosenEvidence.start, chosenEvidence.end, EVIDENCE_SHARE);
  }

  timeAt(x) {
    return timeAt(x, this.view, this.painter.plotWidth);
  }

  // -- rows -------------------------------------------------------------------------------------

  get rows() {
    return this.layout.rows;
  }

  rowOf(key) {
    return this.layout.rowOf(key);
  }

  fold(row) {
    if (row.type !== "rank") this.layout.fold(row);
    else if (!this.opened.delete(row.number)) {
      this.opened.add(row.number);
      this.data.loadRank(row.number);
    }
    this.refresh();
  }

  // Open what a row is folded into and bring it into sight.
  reveal(key) {
    const row = this.rowOf(key);
    if (!row) return;
    if (row.folded) {
      this.layout.fold(row);
      this.#place();
    }
    const { y, height } = this.rowOf(key);
    const { scroller } = this.panel;
    const room = scroller.clientHeight - AXIS;
    if (y < scroller.scrollTop) scroller.scrollTop = y - MARGIN;
    else if (y + height > scroller.scrollTop + room) scroller.scrollTop = y + height - room + MARGIN;
  }

  // -- drawing ----------------------------------------------------------------------------------

  // Draw anew, once for all that changes until the next frame.
  refresh() {
    this.frameAsked ??= requestAnimationFrame(() => {
      this.frameAsked = null;
      if (this.root.isConnected) this.#draw();
    });
  }

  #place() {
    const { scroller, spacer } = this.panel;
    const below = this.layout.place(this.opened, this.data.ranks) + AXIS + FOOT;
    spacer.style.height = `${Math.max(below - scroller.clientHeight, 0)}px`;
    for (const row of this.rows) row.top = AXIS + row.y - scroller.scrollTop;
  }

  #draw() {
    const { scroller } = this.panel;
    const [width, height] = [scroller.clientWidth, scroller.clientHeight];
    if (width !== this.painter.width || height !== this.painter.height) {
      this.painter.resize(width, height);
    }
    this.#place();
    this.#placeEvidence();
    this.painter.draw({
      view: this.view,
      rows: this.rows,
      rowOf: (key) => this.rowOf(key),
      tiles: this.data.tiles,
      marks: this.marks,
      bands: this.bands,
      hover: this.pointer.hover ?? this.block,
      selected: this.selected,
      pointerX: this.pointer.x,
      chosen: this.chosen,
      timeLabel: this.timeLabel,
    });
    if (!this.view) return;
    const nearby = this.rows.filter((row) =>
      row.track && row.top + row.height > AXIS - AHEAD && row.top < height + AHEAD);
    this.data.show(nearby.map((row) => row.track.row), this.view, this.painter.plotWidth);
    this.root.dataset.state = this.data.failure ? "failed" : "ready";
    if (this.data.failure) {
      this.panel.showMessage(`The dashboard cannot be reached: ${this.data.failure}`);
    }
  }

  // Marks of all evidence on the axis, and bands over the rows of the finding that is shown.
  #placeEvidence() {
    this.marks = [...this.opened].flatMap((number) =>
      (this.data.ranks.get(number)?.evidence ?? []).map((evidence) =>
        ({ ...evidence, rank: number, source: evidence, chosen: this.#isChosen(evidence) })));
    this.bands = this.marks
      .filter((mark) => mark.number === this.chosenEvidence?.number)
      .map((mark) => ({ ...mark, ...this.#heightOf(mark.rank) }));
  }

  #heightOf(number) {
    const rows = this.rows.filter((row) => row.number === number);
    return {
      top: rows[0]?.top ?? 0,
      bottom: Math.max(...rows.map((row) => row.top + row.height)),
    };
  }

  // -- selecting --------------------------------------------------------------------------------

  forgetSelection() {
    this.selected = this.block = this.chosenEvidence = this.chosen = null;
    this.panel.showNothing();
  }

  deselect() {
    this.forgetSelection();
    this.note();
    this.refresh();
  }

  // go: bring it into view; scroll: bring its row into sight.
  async select(id, { go = false, scroll = false } = {}) {
    const rank = Number(id.split(".")[0]);
    let event;
    try {
      if (!this.opened.has(rank) && this.numbers.includes(rank)) this.opened.add(rank);
      await this.data.loadRank(rank);
      event = await this.data.event(id);
    } catch (error) {
      this.panel.showMessage(error.message);
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

  // Go from the selected event to one that it is linked to, with both in view.
  async follow(event) {
    const { selected } = this;
    const start = Math.min(selected.begin, event.begin);
    const end = Math.max(selected.begin + selected.length, event.begin + event.length);
    if (!holds(this.view, { start, end })) this.frame(start, end, LINK_SHARE);
    await this.select(event.id, { scroll: true });
  }

  #bringIntoView(interval) {
    const view = bringingIn(this.view, interval, this.painter.plotWidth);
    if (view) this.setView(view, { jump: true });
    else this.note(true);
  }

  async selectBlock(block) {
    this.forgetSelection();
    this.block = block;
    this.refresh();
    const summary = await this.data.block(block.row, block.start, block.end);
    if (this.block !== block) return;
    if (summary.id) this.select(summary.id);
    else this.panel.showBlock(block, summary);
    this.note();
  }

  #isChosen({ number, evidence }) {
    const { chosenEvidence } = this;
    return chosenEvidence?.number === number && chosenEvidence.evidence === evidence;
  }

  chooseEvidence(rank, evidence) {
    this.forgetSelection();
    this.chosenEvidence = { ...evidence, rank };
    const { evidence: ofRank, rows } = this.data.ranks.get(rank);
    const ofFinding = ofRank.filter((other) => other.number === evidence.number);
    this.panel.showEvidence(rank, ofFinding, ofFinding.indexOf(evidence));
    // Most findings are about what the GPU did: its last row, and those above it.
    const last = rows.findLast((row) => row.source === "op");
    this.#place();
    if (last) this.reveal(last.row);
    this.refresh();
  }

  showEvidence(rank, evidence) {
    this.chooseEvidence(rank, evidence);
    this.frame(evidence.start, evidence.end, EVIDENCE_SHARE);
  }

  #listen() {
    listenToInput(this);
    new ResizeObserver(() => this.refresh()).observe(this.panel.scroller);
    this.panel.scroller.addEventListener("scroll", () => this.refresh());
  }
}
