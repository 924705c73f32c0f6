// What the timeline knows: ranks and their rows, what the screen can show of them, single events.
// Everything comes from the server that served the page; times become numbers from a base.
import { decoded, isFresh, requestFor } from "./tiles.js";

const RETRY_MS = 2000;
const MAX_EVENTS = 500; // that are kept

async function ask(path, parameters) {
  const reply = await fetch(`/timeline/${path}?${new URLSearchParams(parameters)}`);
  if (reply.ok) return reply.json();
  const { error } = await reply.json().catch(() => ({}));
  throw new Error(error ?? `the server answered ${reply.status} to ${path}`);
}

export class TimelineData {
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
      const reply = await ask("rank", { rank: number });
      rank = { ...reply, state: "ready" };
      if (reply.start !== null) {
        rank.start = this.toOffset(reply.start);
        rank.end = this.toOffset(reply.end);
      }
      for (const interval of rank.evidence) {
        interval.start = this.toOffset(interval.start);
        interval.end = this.toOffset(interval.end);
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
    if (rows.every((row) => isFresh(this.tiles.get(row), view, columns))) return;
    const request = requestFor(view, columns);
    this.inFlight = true;
    try {
      const reply = await ask("tiles", {
        rows: rows.join(","),
        start: this.toTime(request.start),
        end: this.toTime(request.end),
        columns: request.columns,
      });
      for (const [row, tile] of Object.entries(reply.rows)) {
        this.tiles.set(row, decoded(tile, request, view, columns));
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
      if (this.events.size >= MAX_EVENTS) this.events.delete(this.events.keys().next().value);
      const asked = this.#readEvent(id);
      asked.catch(() => this.events.delete(id));
      this.events.set(id, asked);
    }
    return this.events.get(id);
  }

  async #readEvent(id) {
    const event = await ask("event", { id });
    for (const timed of [event, ...event.links]) {
      timed.begin = this.toOffset(timed.start);
      timed.length = Number(timed.duration);
    }
    return event;
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
