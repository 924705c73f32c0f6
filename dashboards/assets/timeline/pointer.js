// What the pointer is on, what is told of it, and what a click there does.
(() => {
  const { duration, grouped } = window.traceprofTime;
  const { GUTTER, AXIS, MARKS } = window.traceprofTimelinePainter;
  const HOVER_MS = 60;
  const NEAR = 2; // pixels
  const LEAST_MARK = 5; // pixels
  const MOST_FACTS = 9;

  class TimelinePointer {
    constructor(timeline) {
      this.timeline = timeline;
      this.x = null; // where it is in the plot
      this.last = null; // where it was seen last: on the canvas, in the window
      this.hover = null; // the event or block that it is on
    }

    // What is drawn at a place: a row, and the event or block there.
    #hit(x, y) {
      const { timeline } = this;
      const row = timeline.rows.find((each) => y >= each.top && y < each.top + each.height);
      if (y < AXIS || !row?.track || x < GUTTER) return { row };
      const tile = timeline.data.tiles.get(row.track.row);
      if (!tile) return { row };
      const time = timeline.timeAt(x) - tile.start;
      const event = this.#nearest(tile, time);
      const unit = tile.span / tile.columns;
      const column = tile.column.indexOf(Math.floor(time / unit));
      if (column >= 0 && !(event?.away === 0)) {
        const start = tile.start + tile.column[column] * unit;
        const mark = { start, end: start + unit, share: tile.share[column] };
        return { row, mark: { ...mark, row: row.track.row } };
      }
      if (!event) return { row };
      const start = tile.start + tile.begin[event.index];
      const id = `${row.number}.${row.track.source}.${tile.event[event.index]}`;
      return { row, mark: { id, row: row.track.row, start, end: start + tile.length[event.index] } };
    }

    // The event of a tile that is nearest to a time, and how far away that is.
    #nearest(tile, time) {
      const { view, painter } = this.timeline;
      const near = (NEAR * view.span) / painter.plotWidth;
      let best = null;
      tile.begin.forEach((begin, index) => {
        const away = Math.max(begin - time, time - begin - tile.length[index], 0);
        if (away <= near && (!best || away <= best.away)) best = { away, index };
      });
      return best;
    }

    // The mark of a finding on the axis.
    #markAt(x, y) {
      if (y < AXIS - MARKS || y >= AXIS) return null;
      const { painter, marks } = this.timeline;
      return marks.find((each) => {
        const left = painter.x(each.start);
        const width = Math.max(painter.x(each.end) - left, LEAST_MARK);
        return x >= left - NEAR && x <= left + width + NEAR;
      });
    }

    move(x, y, pageX, pageY) {
      const { timeline, hover } = this;
      const { canvas } = timeline.panel;
      this.last = [x, y, pageX, pageY];
      this.x = x >= GUTTER ? x : null;
      const { row, mark } = this.#hit(x, y);
      const finding = this.#markAt(x, y);
      const isSame = mark && hover && mark.row === hover.row && mark.start === hover.start &&
        mark.id === hover.id;
      if (!isSame) this.hover = mark ?? null;
      const isButton = mark || finding || row?.foldable;
      canvas.style.cursor = isButton ? "pointer" : x < GUTTER ? "default" : "grab";
      timeline.refresh();
      if (finding) {
        const title = `${finding.severity}: ${finding.finding}`;
        timeline.panel.showTooltip([title, finding.label], pageX, pageY);
      } else if (!isSame) {
        clearTimeout(this.telling);
        timeline.panel.hideTooltip();
        if (mark) this.telling = setTimeout(() => this.#tell(mark, pageX, pageY), HOVER_MS);
      }
    }

    // More came from the server: what is under the pointer may be something else now.
    again() {
      if (this.last) this.move(...this.last);
    }

    // What was under it has moved away.
    forget() {
      this.hover = null;
      clearTimeout(this.telling);
      this.timeline.panel.hideTooltip();
    }

    leave() {
      this.x = this.last = null;
      this.forget();
      this.timeline.refresh();
    }

    async #tell(mark, x, y) {
      const { data, panel } = this.timeline;
      try {
        const lines = mark.id
          ? this.#eventLines(await data.event(mark.id))
          : this.#blockLines(mark, await data.block(mark.row, mark.start, mark.end));
        if (this.hover === mark) panel.showTooltip(lines, x, y);
      } catch {
        // The panel says it where the server is gone.
      }
    }

    #eventLines(event) {
      const facts = event.facts.slice(0, MOST_FACTS).map(([name, value]) => `${name}: ${value}`);
      return [event.label, [duration(event.length), event.group].filter(Boolean).join(" · "), ...facts];
    }

    #blockLines(mark, summary) {
      const events = `${grouped(summary.count)} ${summary.count === 1 ? "event" : "events"}`;
      const covered = `${(mark.share / 10).toFixed(1)} % covered`;
      return [
        `${events} in ${duration(mark.end - mark.start)}, ${covered}`,
        ...summary.names.map((each) =>
          `${grouped(each.count)} × ${each.name}, ${duration(Number(each.total))}`),
      ];
    }

    click(x, y) {
      const { timeline } = this;
      const finding = this.#markAt(x, y);
      const { row, mark } = this.#hit(x, y);
      if (finding) timeline.showEvidence(finding.rank, finding.source);
      else if (row?.foldable) timeline.fold(row);
      else if (mark?.id) timeline.select(mark.id);
      else if (mark) timeline.selectBlock(mark);
      else timeline.deselect();
    }
  }

  window.traceprofTimelinePointer = TimelinePointer;
})();
