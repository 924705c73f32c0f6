// The timeline: what is in view, what is selected, and what mouse, keyboard and address do to it.
// An element with the id `timeline` becomes one (dashboards/pages/timeline.py). Its parts: time.js
// counts, timeline_data.js asks the server, timeline_layout.js says which row stands where,
// timeline_draw.js draws, timeline_panel.js is what stands around, timeline_pointer.js and
// timeline_input.js are mouse and keyboard.
(() => {
  const NOTE_MS = 250;
  const parameter = (name) => new URLSearchParams(location.search).get(name);
  const isNumber = (text) => text !== null && /^-?\d{1,19}$/.test(text);

  class Timeline {
    constructor(root) {
      const { GUTTER, AXIS } = window.traceprofTimelinePainter;
      Object.assign(this, { root, GUTTER, AXIS });
      this.numbers = JSON.parse(root.dataset.ranks);
      this.opened = new Set(JSON.parse(root.dataset.opened));
      this.layout = new window.traceprofTimelineLayout(this.numbers,
        JSON.parse(root.dataset.labels), this.opened.size > 1);
      this.colors = JSON.parse(root.dataset.colors);
      this.timeLabel = root.dataset.time;
      this.data = new window.traceprofTimelineData(BigInt(root.dataset.base), () => {
        if (!this.chosen) this.pointer.again();
        this.refresh();
      });
      this.panel = new window.traceprofTimelinePanel(root, this.colors, {
        color: (kind) => this.colors[kind],
        search: (direction) => this.search(direction),
        searchFor: (text) => this.searchFor(text),
        follow: (event) => this.follow(event),
        evidence: (rank, evidence) => this.showEvidence(rank, evidence),
        zoom: (factor) => this.view && this.zoom(factor, this.view.start + this.view.span / 2),
        fit: () => this.fit(),
        home: () => this.view && this.home(),
      });
      this.painter = new window.traceprofTimelinePainter(this.panel.canvas, this.colors);
      this.pointer = new window.traceprofTimelinePointer(this);
      this.view = null;
      this.marks = this.bands = [];
      this.forgetSelection();
      this.#listen();
      this.start();
    }

    // -- the address ----------------------------------------------------------------------------

    // Show what the address says; again when the reader goes back.
    async start() {
      this.forgetSelection();
      this.panel.query.value = parameter("search") ?? "";
      this.panel.forgetFound();
      this.panel.showMessage("Reading the rows …");
      const ranks = await Promise.all([...this.opened].map((each) => this.data.loadRank(each)));
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
        const named = (ranks[0]?.evidence ?? []).filter((each) =>
          each.finding === finding && each.evidence === index);
        // A rank can have the same finding of several links: what is in view is meant.
        const evidence = named.find((each) => this.#isInView(each)) ?? named[0];
        if (evidence) this.chooseEvidence([...this.opened][0], evidence);
      }
      if (this.panel.query.value) this.count();
    }

    // Keep the address up to date: a jump can be undone by going back, a movement is only noted.
    note(jump = false) {
      clearTimeout(this.noting);
      if (!this.view) return;
      const write = () => {
        if (!this.root.isConnected) return;
        const query = new URLSearchParams(location.search);
        const set = (name, value) => (value === null ? query.delete(name) : query.set(name, value));
        set("start", this.data.toTime(this.view.start));
        set("end", this.data.toTime(this.view.start + Math.max(this.view.span, 1)));
        set("select", this.selected?.id ?? null);
        set("finding", this.chosenEvidence?.finding ?? null);
        set("evidence", this.chosenEvidence?.evidence ?? null);
        set("search", this.panel.query.value || null);
        const href = `${location.pathname}?${String(query).replaceAll("%2C", ",")}`;
        history[jump ? "pushState" : "replaceState"](history.state, "", href);
      };
      if (jump) write();
      else this.noting = setTimeout(write, NOTE_MS);
    }

    // -- the view -------------------------------------------------------------------------------

    #isInView({ start, end }) {
      return start >= this.view.start && end <= this.view.start + this.view.span;
    }

    extent() {
      const ready = [...this.opened].map((each) => this.data.ranks.get(each))
        .filter((each) => each?.start !== undefined);
      if (!ready.length) return { start: 0, end: 1e9 };
      return {
        start: Math.min(...ready.map((each) => each.start)),
        end: Math.max(...ready.map((each) => each.end)),
      };
    }

    setView(view, { jump = false } = {}) {
      this.view = window.traceprofTime.clamped(view, this.extent());
      this.pointer.forget();
      this.note(jump);
      this.refresh();
    }

    zoom(factor, at) {
      const { start, span } = this.view;
      const wide = window.traceprofTime.clamped({ start, span: span * factor }, this.extent()).span;
      this.setView({ start: at - ((at - start) / span) * wide, span: wide });
    }

    pan(share) {
      this.setView({ start: this.view.start + share * this.view.span, span: this.view.span });
    }

    home() {
      const { start, end } = this.extent();
      this.setView({ start, span: end - start }, { jump: true });
    }

    // Have a piece of time fill so much of the view.
    frame(start, end, share = 0.6) {
      const span = Math.max(end - start, 10) / share;
      this.setView({ start: (start + end) / 2 - span / 2, span }, { jump: true });
    }

    fit() {
      const { selected, block, chosenEvidence } = this;
      if (selected) this.frame(selected.begin, selected.begin + selected.length);
      else if (block) this.frame(block.start, block.end, 0.9);
      else if (chosenEvidence) this.frame(chosenEvidence.start, chosenEvidence.end, 0.5);
    }

    timeAt(x) {
      return this.view.start + ((x - this.GUTTER) / this.painter.plotWidth) * this.view.span;
    }

    // -- rows -----------------------------------------------------------------------------------

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
      const room = scroller.clientHeight - this.AXIS;
      if (y < scroller.scrollTop) scroller.scrollTop = y - 30;
      else if (y + height > scroller.scrollTop + room) scroller.scrollTop = y + height - room + 30;
    }

    // -- drawing --------------------------------------------------------------------------------

    refresh() {
      this.frameAsked ??= requestAnimationFrame(() => {
        this.frameAsked = null;
        if (this.root.isConnected) this.#draw();
      });
    }

    #place() {
      const { scroller, spacer } = this.panel;
      const below = this.layout.place(this.opened, this.data.ranks) + this.AXIS + 8;
      spacer.style.height = `${Math.max(below - scroller.clientHeight, 0)}px`;
      for (const row of this.rows) row.top = this.AXIS + row.y - scroller.scrollTop;
    }

    #draw() {
      const { scroller } = this.panel;
      const [width, height] = [scroller.clientWidth, scroller.clientHeight];
      if (width !== this.painter.width || height !== this.painter.height) {
        this.painter.resize(width, height);
      }
      this.#place();
      const ranks = [...this.opened].map((each) => [each, this.data.ranks.get(each)]);
      this.marks = ranks.flatMap(([number, rank]) => (rank?.evidence ?? []).map((each) =>
        ({ ...each, rank: number, source: each, chosen: this.#isChosen(each) })));
      this.bands = this.marks
        .filter((each) => each.number === this.chosenEvidence?.number)
        .map((each) => ({ ...each, ...this.#heightOf(each.rank) }));
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
      const seen = this.rows.filter((row) =>
        row.track && row.top + row.height > this.AXIS - 100 && row.top < height + 100);
      this.data.show(seen.map((row) => row.track.row), this.view, this.painter.plotWidth);
      this.root.dataset.state = this.data.failure ? "failed" : "ready";
      if (this.data.failure) {
        this.panel.showMessage(`The dashboard cannot be reached: ${this.data.failure}`);
      }
    }

    #heightOf(rank) {
      const own = this.rows.filter((row) => row.number === rank);
      return { top: own[0]?.top ?? 0, bottom: Math.max(...own.map((row) => row.top + row.height)) };
    }

    // -- selecting ------------------------------------------------------------------------------

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
      if (go) this.#bringIntoView(event.begin, event.begin + event.length);
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
      const { start: left, span } = this.view;
      if (start < left || end > left + span) this.frame(start, end, 0.8);
      await this.select(event.id, { scroll: true });
    }

    // Move there; zoom only where the event would be too narrow or too wide to be seen.
    #bringIntoView(begin, end) {
      const { start, span } = this.view;
      const share = (end - begin) / span;
      if (share > 1 || share < 3 / this.painter.plotWidth) this.frame(begin, end, 0.04);
      else if (begin < start || end > start + span) {
        this.setView({ start: (begin + end) / 2 - span / 2, span }, { jump: true });
      } else this.note(true);
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
      const all = this.data.ranks.get(rank).evidence
        .filter((each) => each.number === evidence.number);
      this.panel.showEvidence(rank, all, all.indexOf(evidence));
      // Most findings are about what the GPU did: its last row, and those above it.
      const rows = this.data.ranks.get(rank).rows.filter((each) => each.source === "op");
      this.#place();
      if (rows.length) this.reveal(rows.at(-1).row);
      this.refresh();
    }

    showEvidence(rank, evidence) {
      this.chooseEvidence(rank, evidence);
      this.frame(evidence.start, evidence.end, 0.5);
    }

    // -- searching ------------------------------------------------------------------------------

    // Say how many match, without going anywhere.
    async count() {
      const found = await this.#find("next", null);
      if (found) this.panel.showFound(found);
    }

    async search(direction) {
      const found = await this.#find(direction, this.selected?.id);
      if (!found) return;
      this.panel.showFound(found);
      this.panel.names.hidden = true;
      if (found.next) await this.select(found.next.id, { go: true });
    }

    searchFor(text) {
      this.panel.query.value = text.replace(/…$/, ""); // of a long name, what was shown
      this.search("next");
    }

    async #find(direction, from) {
      const text = this.panel.query.value;
      if (!text || !this.view) {
        this.panel.forgetFound();
        return null;
      }
      try {
        return await this.data.search([...this.opened], text, direction, this.view.start, from);
      } catch (error) {
        this.panel.showMessage(error.message);
        return null;
      }
    }

    #listen() {
      window.traceprofTimelineInput(this);
      new ResizeObserver(() => this.refresh()).observe(this.panel.scroller);
      this.panel.scroller.addEventListener("scroll", () => this.refresh());
    }
  }

  // Pages come and go without the document being loaded anew.
  let current = null;
  const mount = () => {
    const root = document.getElementById("timeline");
    if (root === (current?.root ?? null)) return;
    current = root && new Timeline(root);
    window.traceprofTimeline = current;
  };
  window.addEventListener("popstate", () => current?.root.isConnected && current.start());
  window.addEventListener("traceprof:theme", () => {
    current?.painter.restyle();
    current?.refresh();
  });
  document.addEventListener("DOMContentLoaded", () => {
    new MutationObserver(mount).observe(document.body, { childList: true, subtree: true });
    mount();
  });
})();
