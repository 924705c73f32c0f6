// @ts-check
// Data of the timeline: ranks and their rows, tiles that fill the screen, single events.
// Everything comes from the server that served the page; times become numbers from a base.
import { spreadsOf } from "./spreads.js";
import { isFreshStrip } from "./strips.js";
import { decoded, isFresh, requestFor } from "./tiles.js";
import { extentOf } from "./view.js";

/** @import { TimelineLayout } from "./layout.js" */
/** @import { Answers, EventDetails, Evidence, Hits, Interval, Matches, RankRows, Strip, Tile, TileReply, View } from "./types.d.ts" */

const RETRY_MS = 2000;
const MAX_EVENTS = 500; // that are kept

/**
 * @param {string} path
 * @param {Record<string, any>} parameters
 * @param {AbortSignal} [signal]
 * @returns {Promise<any>}
 */
export async function ask(path, parameters, signal) {
  const reply = await fetch(`${path}?${new URLSearchParams(parameters)}`, { signal });
  if (reply.ok) return reply.json();
  const { error } = await reply.json().catch(() => ({}));
  throw new Error(error ?? `the server answered ${reply.status} to ${path}`);
}

export class TimelineData {
  /**
   * base: BigInt, from which times are counted; changed: called when there is more to draw.
   * @param {bigint} base
   * @param {() => void} changed
   * @param {string} [prefix] of the addresses at which the server answers
   * @param {string} [run] first start and last end of all ranks
   */
  constructor(base, changed, prefix = "/timeline", run = "") {
    this.base = base;
    this.changed = changed;
    this.prefix = prefix;
    const [start, end] = run.split(",").map((time) => this.toOffset(time));
    this.run = run ? { start, end } : undefined;
    /** @type {Interval | undefined} */
    this.asked = undefined; // by the address; its host may not be read yet
    /** @type {Map<number, RankRows>} */
    this.ranks = new Map(); // by number: {state: "loading" | "ready" | "failed", …}
    /** @type {Map<string, Promise<RankRows>>} */
    this.loading = new Map(); // by number and part: promises
    /** @type {Map<string, Tile>} */
    this.tiles = new Map(); // by row
    /** @type {Map<number, Strip>} */
    this.strips = new Map(); // by rank
    /** @type {Hits | null} */
    this.hits = null;
    /** @type {Set<string>} */
    this.asking = new Set(); // what is on its way: strips, hits
    /** @type {Map<string, Promise<EventDetails>>} */
    this.events = new Map(); // by id: promises
    /** @type {string | null} */
    this.failure = null; // the error of the last tiles
    this.inFlight = false;
    this.waiting = false; // after a failure, until the next try
    /** @type {Evidence[] | undefined} */
    this.marked = undefined; // in place of evidence
    /** @type {{ rows: string[], view: View, columns: number } | null} */
    this.wanted = null;
    /** @type {AbortController | null} */
    this.searching = null;
  }

  /**
   * @param {string} what
   * @param {Record<string, any>} parameters
   * @param {AbortSignal} [signal]
   */
  #ask(what, parameters, signal) {
    return ask(`${this.prefix}/${what}`, parameters, signal);
  }

  /** @param {string} text */
  toOffset(text) {
    return Number(BigInt(text) - this.base);
  }

  /** @param {number} offset */
  toTime(offset) {
    return this.base + BigInt(Math.round(offset));
  }

  /**
   * The run of all ranks, with all that is read of them.
   * @param {Set<number>} opened
   */
  extent(opened) {
    const isRead = [...opened].every((number) => this.ranks.get(number)?.host);
    return extentOf([this.run, isRead ? undefined : this.asked, ...this.ranks.values()]);
  }

  /**
   * The rows of a rank's GPU, which come first, and those of its host once they are read; or all.
   * @param {number} number
   * @param {"gpu" | "host"} part
   * @returns {RankRows | Promise<RankRows>}
   */
  loadRank(number, part = "gpu") {
    const known = this.ranks.get(number);
    if (known?.host || (known?.state === "ready" && part === "gpu")) return known;
    const key = `${number} ${part}`;
    if (!this.loading.has(key)) {
      if (!known) this.ranks.set(number, { state: "loading", rows: [], evidence: [] });
      this.loading.set(key, this.#readRank(number, part));
    }
    return /** @type {Promise<RankRows>} */ (this.loading.get(key));
  }

  /**
   * @param {any[]} evidence as the server sends it
   * @returns {Evidence[]}
   */
  placed(evidence) {
    return evidence.map((one) => ({ ...one, start: this.toOffset(one.start), end: this.toOffset(one.end) }));
  }

  /**
   * Show these on a rank in place of its evidence.
   * @param {number} number
   * @param {any[]} evidence as the server sends it
   */
  async mark(number, evidence) {
    this.marked = this.placed(evidence);
    (await this.loadRank(number)).evidence = this.marked;
    this.changed();
  }

  /**
   * @param {number} number
   * @param {string} part
   * @returns {Promise<RankRows>}
   */
  async #readRank(number, part) {
    /** @type {RankRows} */
    let rank;
    try {
      const reply = await this.#ask("rank", { rank: number, part });
      rank = { ...reply, state: "ready", start: undefined, end: undefined };
      if (reply.start !== null) {
        rank.start = this.toOffset(reply.start);
        rank.end = this.toOffset(reply.end);
      }
      rank.evidence = this.marked ?? this.placed(rank.evidence);
    } catch (error) {
      rank = { state: "failed", error: String(/** @type {Error} */ (error).message), rows: [], evidence: [] };
    }
    this.loading.delete(`${number} ${part}`);
    if (!this.ranks.get(number)?.host) this.ranks.set(number, rank);
    this.changed();
    return this.ranks.get(number) ?? rank;
  }

  /**
   * Request the tiles of some rows for a view; of several requests in a row the last one counts.
   * @param {string[]} rows
   * @param {View} view
   * @param {number} columns
   */
  show(rows, view, columns) {
    this.wanted = { rows, view: { ...view }, columns };
    if (!this.inFlight && !this.waiting) this.#fetchTiles();
  }

  async #fetchTiles() {
    if (!this.wanted) return;
    const { rows, view, columns } = this.wanted;
    this.wanted = null;
    if (rows.every((row) => isFresh(this.tiles.get(row), view, columns))) return;
    const request = requestFor(view, columns);
    this.inFlight = true;
    try {
      const reply = await this.#ask("tiles", {
        rows: rows.join(","),
        start: this.toTime(request.start),
        end: this.toTime(request.end),
        columns: request.columns,
      });
      const tiles = /** @type {Record<string, TileReply>} */ (reply.rows);
      for (const [row, tile] of Object.entries(tiles)) {
        this.tiles.set(row, decoded(tile, request, view, columns));
      }
      this.failure = null;
    } catch (error) {
      this.#fail(error);
    }
    this.inFlight = false;
    this.changed();
    if (this.wanted && !this.waiting) this.#fetchTiles();
  }

  /**
   * Ask for the strips of folded ranks in a view; of several requests in a row the last one counts.
   * @param {number[]} ranks
   * @param {View} view
   * @param {number} columns
   */
  showStrips(ranks, view, columns) {
    // One by one: making the first strip of a rank takes a moment.
    const rank = ranks.find((number) => !isFreshStrip(this.strips.get(number), view));
    if (rank === undefined) return;
    this.#askOnce("strips", { rank }, view, columns,
      (shares) => this.strips.set(rank, { ...view, shares: shares[rank] }));
  }

  /**
   * Ask for something in half as many columns as a view has pixels, unless that is on its way.
   * @param {string} what
   * @param {Record<string, any>} parameters
   * @param {View} view
   * @param {number} width
   * @param {(reply: any, count: number) => void} use
   */
  async #askOnce(what, parameters, { start, span }, width, use) {
    if (this.asking.has(what) || this.waiting) return;
    this.asking.add(what);
    const count = Math.max(Math.round(width / 2), 1);
    const times = { start: this.toTime(start), end: this.toTime(start + Math.max(span, 1)) };
    try {
      use(await this.#ask(what, { ...parameters, columns: count, ...times }), count);
    } catch (error) {
      this.#fail(error);
    }
    this.asking.delete(what);
    this.changed();
  }

  /**
   * Ask where in a view something begins that is searched for; of several requests in a row the last
   * one counts.
   * @param {number[]} ranks
   * @param {string} text
   * @param {View} view
   * @param {number} width of the view, in pixels
   */
  showHits(ranks, text, view, width) {
    const { hits } = this;
    const isCurrent = hits?.text === text && hits.start === view.start && hits.span === view.span && hits.isAll;
    if (!text) this.hits = null;
    if (!text || isCurrent) return;
    this.#askOnce("hits", { rank: ranks.join(","), text }, view, width, (reply, count) => {
      this.hits = { ...view, text, isAll: reply.is_all, columns: reply.columns, count };
    });
  }

  /** @param {unknown} error */
  #fail(error) {
    this.failure = /** @type {Error} */ (error).message;
    this.waiting = true;
    setTimeout(() => {
      this.waiting = false;
      this.changed();
    }, RETRY_MS);
  }

  /**
   * The server's details of an event; its times as numbers, too.
   * @param {string} id
   * @returns {Promise<EventDetails>}
   */
  event(id) {
    if (!this.events.has(id)) {
      const oldest = this.events.keys().next().value;
      if (this.events.size >= MAX_EVENTS && oldest) this.events.delete(oldest);
      const asked = this.#readEvent(id);
      asked.catch(() => this.events.delete(id));
      this.events.set(id, asked);
    }
    return /** @type {Promise<EventDetails>} */ (this.events.get(id));
  }

  /**
   * @param {string} id
   * @returns {Promise<EventDetails>}
   */
  async #readEvent(id) {
    const event = await this.#ask("event", { id });
    for (const timed of /** @type {EventDetails[]} */ ([event, ...event.links])) {
      timed.begin = this.toOffset(timed.start);
      timed.length = Number(timed.duration);
    }
    return event;
  }

  /**
   * What the server answers to a question whose `start` and `end` are offsets.
   * @template {keyof Answers} What
   * @param {What} what
   * @param {Record<string, any>} parameters
   * @returns {Promise<Answers[What]>}
   */
  answer(what, parameters) {
    const { start, end } = parameters;
    const times = start === undefined ? {} : { start: this.toTime(start), end: this.toTime(end) };
    return this.#ask(what, { ...parameters, ...times });
  }

  /** @param {TimelineLayout} layout */
  async loadSpreads(layout) {
    try {
      const { spreads } = await this.#ask("spreads", {});
      layout.spreads = spreadsOf(spreads, (time) => this.toOffset(time));
    } catch (error) {
      this.#fail(error);
    }
    this.changed();
  }

  /**
   * The number of events with a text in their names, and the one next to an event or a time. An
   * earlier search that is still on its way is given up.
   * @param {number[]} ranks
   * @param {string} text
   * @param {string} direction
   * @param {number} at
   * @param {string | undefined} from
   * @returns {Promise<Matches | null>}
   */
  async search(ranks, text, direction, at, from) {
    this.searching?.abort();
    const searching = new AbortController();
    this.searching = searching;
    const parameters = { rank: ranks.join(","), text, direction, at: this.toTime(at) };
    try {
      return await this.#ask("search", from ? { ...parameters, from } : parameters, searching.signal);
    } catch (error) {
      if (searching.signal.aborted) return null;
      throw error;
    }
  }
}
