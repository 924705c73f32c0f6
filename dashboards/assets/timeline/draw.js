// Draws the timeline on a canvas: names are written with fillText only, never made markup.
(() => {
  const { ticks, seconds, duration } = window.traceprofTime;
  const GUTTER = 230; // for the names of rows
  const AXIS = 46; // for the times, and the marks of findings below them
  const MARKS = 12; // of these, for the marks
  const FONT = "11.5px system-ui, 'Liberation Sans', sans-serif";
  const INK = "#10151a"; // text on the colours of what ran, which are the same in light and dark
  const HATCHED = "communication";
  const TICK_PIXELS = 110;

  // Colours of the page around, which differ between light and dark.
  function themeOf(element) {
    const style = getComputedStyle(element);
    const of = (name) => style.getPropertyValue(`--${name}`).trim();
    const names = ["ground", "surface", "sunken", "line", "text", "text-2", "accent", "focus",
      "highlight", "high", "medium", "low", "info"];
    return Object.fromEntries(names.map((name) => [name, of(name)]));
  }

  // Three shades of a colour, so that neighbours with different names can be told apart.
  const WHITES = [0, 0.22, 0.42];
  const HATCHED_WHITES = [0, 0.12, 0.24]; // hatching makes it lighter
  function shades(color, whites) {
    const parts = [1, 3, 5].map((at) => parseInt(color.slice(at, at + 2), 16));
    return whites.map(
      (white) => `rgb(${parts.map((each) => Math.round(each + (255 - each) * white)).join(" ")})`,
    );
  }

  // Diagonal lines over what communicates: it differs from the rest by more than its colour.
  function hatching(context) {
    const tile = document.createElement("canvas");
    tile.width = tile.height = 8;
    const pen = tile.getContext("2d");
    pen.strokeStyle = "rgb(255 255 255 / 45%)";
    pen.lineWidth = 1.6;
    for (const shift of [-8, 0, 8]) {
      pen.moveTo(shift, 8);
      pen.lineTo(shift + 8, 0);
    }
    pen.stroke();
    return context.createPattern(tile, "repeat");
  }

  class TimelinePainter {
    // colors: by kind of row, from palette.py.
    constructor(canvas, colors) {
      this.canvas = canvas;
      this.context = canvas.getContext("2d");
      this.shades = Object.fromEntries(
        Object.entries(colors).map(([kind, color]) =>
          [kind, shades(color, kind === HATCHED ? HATCHED_WHITES : WHITES)]),
      );
      this.hatching = hatching(this.context);
      this.restyle();
    }

    restyle() {
      this.theme = themeOf(this.canvas);
    }

    resize(width, height) {
      const ratio = window.devicePixelRatio || 1;
      [this.width, this.height] = [width, height];
      this.canvas.width = Math.round(width * ratio);
      this.canvas.height = Math.round(height * ratio);
      this.canvas.style.width = `${width}px`;
      this.canvas.style.height = `${height}px`;
    }

    get plotWidth() {
      return Math.max(this.width - GUTTER, 1);
    }

    // state: see timeline.js, which owns it.
    draw(state) {
      const { context, theme, width, height } = this;
      const ratio = window.devicePixelRatio || 1;
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.fillStyle = theme.surface;
      context.fillRect(0, 0, width, height);
      context.font = FONT;
      context.textBaseline = "middle";
      const { start, span } = state.view ?? { start: 0, span: 1 };
      this.x = (time) => GUTTER + ((time - start) / span) * this.plotWidth;
      const grid = state.view
        ? ticks(start, span, (span * TICK_PIXELS) / this.plotWidth)
        : { list: [], anchor: null }; // before it is known what there is to show
      this.#grid(grid);
      this.#clip(GUTTER, AXIS, this.plotWidth, height - AXIS, () => {
        this.#bands(state);
        for (const row of state.rows) if (row.track) this.#row(row, state);
        this.#outlines(state);
      });
      this.#clip(0, AXIS, width, height - AXIS, () => this.#names(state));
      this.#clip(GUTTER, AXIS, this.plotWidth, height - AXIS, () => this.#links(state));
      this.#axis(grid, state);
      this.#selection(state);
    }

    #clip(x, y, width, height, paint) {
      const { context } = this;
      context.save();
      context.beginPath();
      context.rect(x, y, width, height);
      context.clip();
      paint();
      context.restore();
    }

    #grid(grid) {
      const { context, theme } = this;
      context.strokeStyle = theme.line;
      context.lineWidth = 1;
      context.beginPath();
      for (const { at } of grid.list) {
        const x = Math.round(this.x(at)) + 0.5;
        if (x < GUTTER) continue;
        context.moveTo(x, AXIS);
        context.lineTo(x, this.height);
      }
      context.stroke();
    }

    // The evidence of the finding that is shown: across the rows of its rank.
    #bands(state) {
      const { context, theme } = this;
      for (const band of state.bands) {
        const left = this.x(band.start);
        const width = Math.max(this.x(band.end) - left, 2);
        context.globalAlpha = band.chosen ? 0.22 : 0.1;
        context.fillStyle = theme.highlight;
        context.fillRect(left, band.top, width, band.bottom - band.top);
        context.globalAlpha = band.chosen ? 1 : 0.5;
        context.fillRect(left - 1, band.top, 1.5, band.bottom - band.top);
        context.fillRect(left + width - 0.5, band.top, 1.5, band.bottom - band.top);
        context.globalAlpha = 1;
      }
    }

    #row(row, state) {
      const { context, theme } = this;
      const { top, height } = row;
      if (top + height < AXIS || top > this.height) return;
      const tile = state.tiles.get(row.track.row);
      if (!tile) {
        context.fillStyle = theme.sunken;
        context.fillRect(GUTTER, top + 2, this.plotWidth, height - 4);
        return;
      }
      this.#blocks(tile, row);
      this.#events(tile, row);
    }

    // Columns in which short events are merged: as high as the share of the column they cover.
    #blocks(tile, { track, top, height }) {
      const { context } = this;
      const unit = tile.span / tile.columns;
      const bottom = top + height - 1;
      context.beginPath();
      for (let each = 0; each < tile.column.length; each += 1) {
        const left = this.x(tile.start + tile.column[each] * unit);
        if (left > this.width) break;
        const right = this.x(tile.start + (tile.column[each] + 1) * unit);
        if (right < GUTTER) continue;
        const high = Math.max((tile.share[each] / 1000) * (height - 2), 2);
        context.rect(left, bottom - high, Math.max(right - left, 0.7), high);
      }
      this.#fill(track.kind, 0);
    }

    #events(tile, { track, top, height }) {
      const { context } = this;
      const labels = [];
      for (const shade of [0, 1, 2]) {
        context.beginPath();
        for (let each = 0; each < tile.begin.length; each += 1) {
          if (tile.name[each] % 3 !== shade) continue;
          const left = this.x(tile.start + tile.begin[each]);
          if (left > this.width) break;
          const right = this.x(tile.start + tile.begin[each] + tile.length[each]);
          if (right < GUTTER) continue;
          // A gap to the neighbour, where there is room for one.
          const width = right - left > 4 ? right - left - 1 : Math.max(right - left, 0.7);
          context.rect(left, top + 1, width, height - 2);
          const name = tile.names[tile.name[each]];
          if (name !== undefined && width > 22) labels.push([left, width, name]);
        }
        this.#fill(track.kind, shade);
      }
      context.fillStyle = INK;
      for (const [left, width, name] of labels) {
        const from = Math.max(left, GUTTER);
        const room = Math.min(left + width, this.width) - from - 7;
        if (room > 14) context.fillText(this.#fitting(name, room), from + 4, top + height / 2 + 0.5);
      }
    }

    #fill(kind, shade) {
      const { context } = this;
      context.fillStyle = (this.shades[kind] ?? this.shades.host)[shade];
      context.fill();
      if (kind === HATCHED) {
        context.fillStyle = this.hatching;
        context.fill();
      }
    }

    // As much of a text as fits: measured once, since most letters are about as wide.
    #fitting(text, room) {
      const width = this.context.measureText(text).width;
      if (width <= room) return text;
      const letters = Math.floor((text.length * (room - 9)) / width);
      return letters > 2 ? `${text.slice(0, letters)}…` : "";
    }

    // What the pointer is on, what is selected, and what that is linked to.
    #outlines(state) {
      const { context, theme } = this;
      const outline = (mark, color, width) => {
        const row = state.rowOf(mark.row);
        if (!row) return;
        const left = this.x(mark.start);
        const right = Math.max(this.x(mark.end), left + 2);
        context.strokeStyle = color;
        context.lineWidth = width;
        context.strokeRect(left - 1, row.top, right - left + 2, row.height);
      };
      if (state.hover) outline(state.hover, theme["text-2"], 1);
      if (!state.selected) return;
      const { selected } = state;
      for (const each of selected.links) {
        outline({ row: each.row, start: each.begin, end: each.begin + each.length }, theme.text, 1.5);
      }
      outline({ row: selected.row, start: selected.begin, end: selected.begin + selected.length },
        theme.text, 2.5);
    }

    // From the call that launches to the operation that is launched. Where one of them is out of
    // view, how far.
    #links(state) {
      const { selected } = state;
      for (const other of selected?.links ?? []) {
        const [call, operation] = selected.kind === "host" ? [selected, other] : [other, selected];
        const from = state.rowOf(call.row);
        const to = state.rowOf(operation.row);
        if (!from || !to) continue;
        const [x1, y1] = [this.x(call.begin), from.top + from.height];
        const [x2, y2] = [this.x(operation.begin), to.top];
        const hidden = [x1, x2].map((x) => x < GUTTER || x > this.width);
        if (hidden[0] && hidden[1]) continue;
        if (hidden[0] || hidden[1]) {
          const row = hidden[0] ? from : to;
          const away = duration(Math.abs(operation.begin - call.begin));
          const text = hidden[0] ? `launched ${away} earlier` : `starts ${away} later`;
          const isLeft = (hidden[0] ? x1 : x2) < GUTTER;
          const width = this.context.measureText(text).width + 22;
          const middle = isLeft ? GUTTER + width / 2 : this.width - width / 2;
          this.#tag(isLeft ? `← ${text}` : `${text} →`, middle, row.top + row.height / 2);
        } else this.#arrow(x1, y1, x2, y2);
      }
    }

    #arrow(x1, y1, x2, y2) {
      const { context, theme } = this;
      const bend = Math.max(Math.abs(y2 - y1) / 2, 18);
      for (const [color, width] of [[theme.surface, 5], [theme.text, 1.8]]) {
        context.strokeStyle = color;
        context.lineWidth = width;
        context.beginPath();
        context.moveTo(x1, y1);
        context.bezierCurveTo(x1, y1 + bend, x2, y2 - bend, x2, y2 - 5);
        context.stroke();
      }
      context.fillStyle = theme.text;
      context.beginPath();
      context.moveTo(x2, y2);
      context.lineTo(x2 - 4.5, y2 - 8);
      context.lineTo(x2 + 4.5, y2 - 8);
      context.fill();
    }

    #names(state) {
      const { context, theme } = this;
      context.fillStyle = theme.surface;
      context.fillRect(0, AXIS, GUTTER, this.height);
      context.fillStyle = theme.line;
      context.fillRect(GUTTER - 1, AXIS, 1, this.height);
      for (const row of state.rows) {
        const { top, height } = row;
        if (top + height < AXIS || top > this.height) continue;
        const middle = top + height / 2 + 0.5;
        if (row.track) {
          context.fillStyle = theme["text-2"];
          context.fillText(this.#fitting(row.label, GUTTER - 34), 26, middle);
          context.fillStyle = (this.shades[row.track.kind] ?? this.shades.host)[0];
          context.fillRect(GUTTER - 5, top + 1, 3, height - 2);
          continue;
        }
        const isRank = row.type === "rank";
        context.fillStyle = isRank ? theme.sunken : theme.ground;
        context.fillRect(0, top, this.width, height);
        context.fillStyle = theme.text;
        context.font = isRank ? `600 ${FONT}` : FONT;
        const arrow = row.foldable ? (row.folded ? "▸ " : "▾ ") : "";
        const text = arrow + row.label;
        context.fillText(this.#fitting(text, this.width - 20), isRank ? 8 : 14, middle);
        context.font = FONT;
        if (row.note) {
          const indent = (isRank ? 8 : 14) + context.measureText(text).width + 18;
          context.fillStyle = theme["text-2"];
          context.fillText(row.note, indent, middle);
        }
        context.fillStyle = theme.line;
        context.fillRect(0, top, this.width, 1);
      }
    }

    #axis(grid, state) {
      const { context, theme } = this;
      context.fillStyle = theme.surface;
      context.fillRect(0, 0, this.width, AXIS);
      context.fillStyle = theme["text-2"];
      context.fillText(state.timeLabel, 8, 13);
      context.fillStyle = theme.text;
      const shown = state.view ? `${duration(state.view.span)} in view` : "";
      context.fillText(grid.anchor === null ? shown : `${grid.anchor}   ${shown}`, 8, 28);
      context.textAlign = "center";
      for (const { at, label } of grid.list) {
        const x = this.x(at);
        if (x < GUTTER + 24 || x > this.width - 24) continue;
        context.fillText(label, x, 18);
        context.fillRect(Math.round(x), 27, 1, 5);
      }
      context.textAlign = "left";
      context.fillStyle = theme.sunken;
      context.fillRect(GUTTER, AXIS - MARKS, this.plotWidth, MARKS);
      this.#clip(GUTTER, 0, this.plotWidth, AXIS, () => {
        for (const mark of state.marks.toReversed()) { // the costliest is first, and on top

          const left = this.x(mark.start);
          const width = Math.max(this.x(mark.end) - left - 1, 5);
          context.fillStyle = theme[mark.severity] || theme.info;
          context.fillRect(left, AXIS - MARKS + 2, width, MARKS - 4);
          if (!mark.chosen) continue;
          context.strokeStyle = theme.text;
          context.lineWidth = 1.5;
          context.strokeRect(left - 1, AXIS - MARKS + 1, width + 2, MARKS - 2);
        }
      });
      context.fillStyle = theme["text-2"];
      if (state.marks.length) {
        context.textAlign = "right";
        context.fillText("findings", GUTTER - 8, AXIS - MARKS / 2);
        context.textAlign = "left";
      }
      context.fillStyle = theme.line;
      context.fillRect(0, AXIS - 1, this.width, 1);
    }

    // The pointer's time, and the piece that is being chosen to zoom to.
    #selection(state) {
      const { context, theme } = this;
      if (state.pointerX === null || !state.view) return;
      const { chosen } = state;
      if (chosen) {
        const [left, right] = [Math.min(chosen.from, chosen.to), Math.max(chosen.from, chosen.to)];
        context.globalAlpha = 0.18;
        context.fillStyle = theme.accent;
        context.fillRect(left, AXIS, right - left, this.height - AXIS);
        context.globalAlpha = 1;
        const length = ((right - left) / this.plotWidth) * state.view.span;
        this.#tag(duration(length), (left + right) / 2, AXIS + 12);
        return;
      }
      context.fillStyle = theme.accent;
      context.globalAlpha = 0.6;
      context.fillRect(Math.round(state.pointerX), AXIS - MARKS, 1, this.height);
      context.globalAlpha = 1;
      const time = state.view.start + ((state.pointerX - GUTTER) / this.plotWidth) * state.view.span;
      this.#tag(seconds(time), state.pointerX, 18);
    }

    #tag(text, x, y) {
      const { context, theme } = this;
      const width = context.measureText(text).width + 12;
      const left = Math.min(Math.max(x - width / 2, GUTTER), this.width - width);
      context.fillStyle = theme.accent;
      context.fillRect(left, y - 9, width, 18);
      context.fillStyle = theme.surface;
      context.fillText(text, left + 6, y + 0.5);
    }
  }

  window.traceprofTimelinePainter = Object.assign(TimelinePainter, { GUTTER, AXIS, MARKS });
})();
