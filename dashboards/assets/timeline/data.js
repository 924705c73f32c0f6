// What the timeline knows: ranks and their rows, what the screen can show of them, single events.
// Everything comes from the server that served the page; times become numbers from a base.
(() => {
  const MARGIN = 0.25; // of the view, asked for on either side: panning shows something at once
  const LEAST_MARGIN = 0.1; // what must be left of it, else it is asked for anew
  const RETRY_MS = 2000;
  const MOST_KEPT = 500; // events

  async function ask(path, parameters, signal) {
    const query = new URLSearchParams(parameters);
    const answer = await fetch(`/timeline/${path}?${query}`, { signal });
    if (answer.ok) return answer.json();
    const told = await answer.json().catch(() => ({}));
    throw new Error(told.error ?? `the server answered ${answer.status} to ${path}`);
  }

  // The tile's arrays, with columns counted from the view's start rather than from one another.
  function decoded(row, start, span) {
    let column = 0;
    const columns = row.column.map((each) => (column += each));
    return { ...row, column: columns, start, span };
  }

  class TimelineData {
    // base: BigInt, from which times are counted; changed: called when there is more to draw.
    constructor(base, changed) {
      this.base = base;
      this.changed = changed;
      this.ranks = new Map(); // by number: {state: "loading" | "ready" | "failed", …}
      this.tiles = new Map(); // by row
      this.events = new Map(); // by id: promises
      this.failure = null; // why the last tiles did not come
      this.inFlight = false;
      this.waiting = false; // after a failure, for the time to try again
      this.wanted = null;
    }

    toOffset(text) {
      return Number(BigInt(text) - this.base);
    }

    toTime(offset) {
      return this.base + BigInt(Math.round(offset));
    }

    async loadRank(number) {
      if (this.ranks.get(number)?.state === "ready") return this.ranks.get(number);
      const loading = this.ranks.get(number)?.promise ?? this.#readRank(number);
      this.ranks.set(number, { ...this.ranks.get(number), state: "loading", promise: loading });
      return loading;
    }

    async #readRank(number) {
      let rank;
      try {
        const told = await ask("rank", { rank: number });
        rank = { ...told, state: "ready" };
        if (told.start !== null) {
          rank.start = this.toOffset(told.start);
          rank.end = this.toOffset(told.end);
        }
        for (const each of rank.evidence) {
          each.start = this.toOffset(each.start);
          each.end = this.toOffset(each.end);
        }
      } catch (error) {
        rank = { state: "failed", error: error.message, rows: [], evidence: [] };
      }
      this.ranks.set(number, rank);
      this.changed();
      return rank;
    }

    // Ask for what a view shows of some rows; of several requests in a row the last one counts.
    show(rows, view, columns) {
      this.wanted = { rows, view: { ...view }, columns };
      if (!this.inFlight && !this.waiting) this.#fetchTiles();
    }

    async #fetchTiles() {
      const { rows, view, columns } = this.wanted;
      this.wanted = null;
      const start = Math.floor(view.start - view.span * MARGIN);
      const end = Math.ceil(view.start + view.span * (1 + MARGIN));
      const complete = rows.every((row) => {
        const tile = this.tiles.get(row);
        return tile && tile.asked === columns && tile.viewSpan === view.span &&
          tile.start <= view.start - view.span * LEAST_MARGIN &&
          tile.start + tile.span >= view.start + view.span * (1 + LEAST_MARGIN);
      });
      if (!rows.length || complete) return;
      this.inFlight = true;
      try {
        const told = await ask("tiles", {
          rows: rows.join(","),
          start: this.toTime(start),
          end: this.toTime(end),
          columns: Math.round(columns * (1 + 2 * MARGIN)),
        });
        for (const [row, tile] of Object.entries(told.rows)) {
          const fresh = decoded(tile, start, end - start);
          this.tiles.set(row, { ...fresh, asked: columns, viewSpan: view.span });
        }
        this.failure = null;
      } catch (error) {
        this.failure = error.message;
        this.waiting = true;
        setTimeout(() => {
          this.waiting = false;
          this.changed();
        }, RETRY_MS);
      }
      this.inFlight = false;
      this.changed();
      if (this.wanted && !this.waiting) this.#fetchTiles();
    }

    // What is known of an event; its times as numbers, too.
    event(id) {
      if (!this.events.has(id)) {
        if (this.events.size >= MOST_KEPT) this.events.delete(this.events.keys().next().value);
        const told = ask("event", { id }).then((event) => {
          for (const each of [event, ...event.links]) {
            each.begin = this.toOffset(each.start);
            each.length = Number(each.duration);
          }
          return event;
        });
        told.catch(() => this.events.delete(id));
        this.events.set(id, told);
      }
      return this.events.get(id);
    }

    // What many events in a piece of a row are.
    block(row, start, end) {
      return ask("block", { row, start: this.toTime(start), end: this.toTime(end) });
    }

    // How many events have a text in their names, and the one next to an event or a time.
    search(ranks, text, direction, at, from) {
      const parameters = { rank: ranks.join(","), text, direction, at: this.toTime(at) };
      return ask("search", from ? { ...parameters, from } : parameters);
    }
  }

  window.traceprofTimelineData = TimelineData;
})();
