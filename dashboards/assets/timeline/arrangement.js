// @ts-check
// The reader's arrangement of rows: which are pinned to the top, hidden, and moved within what they
// belong to. It stands in the address, so that a copied link shows the same rows.
/** @import { Track } from "./types.d.ts" */

/** @param {string | null} text */
const keysOf = (text) => (text ? text.split(",") : []);

/**
 * A list with one entry moved to the place of another.
 * @param {string[]} keys
 * @param {string} key
 * @param {number} place
 */
export function movedTo(keys, key, place) {
  const others = keys.filter((other) => other !== key);
  return others.toSpliced(Math.min(Math.max(place, 0), others.length), 0, key);
}

export class Arrangement {
  constructor() {
    /** @type {string[]} */
    this.pinned = []; // tracks, by key, from the top
    /** @type {Set<string>} */
    this.hidden = new Set();
    /** @type {string[]} */
    this.moved = []; // all tracks of groups with a moved track, in their new order
  }

  /**
   * Restore an arrangement from an address; returns the number of hidden rows.
   * @param {(key: "pinned" | "hidden" | "moved") => string | null} parameter
   */
  restore(parameter) {
    this.pinned = keysOf(parameter("pinned"));
    this.hidden = new Set(keysOf(parameter("hidden")));
    this.moved = keysOf(parameter("moved"));
    return this.hidden.size;
  }

  /** The arrangement as written in the address. */
  get parameters() {
    return {
      pinned: this.pinned.join(",") || null,
      hidden: [...this.hidden].join(",") || null,
      moved: this.moved.join(",") || null,
    };
  }

  /**
   * Pin a track to the top, or unpin it; returns whether it is pinned now.
   * @param {string} key
   */
  pin(key) {
    const others = this.pinned.filter((pinned) => pinned !== key);
    const isPinned = others.length === this.pinned.length;
    this.pinned = isPinned ? [...this.pinned, key] : others;
    return isPinned;
  }

  /**
   * Tracks of a rank in the order in which they are to be shown: groups stay where they are.
   * @param {Track[]} tracks
   */
  ordered(tracks) {
    if (!this.moved.length) return tracks;
    const place = new Map(this.moved.map((key, index) => [key, index]));
    const groups = [...new Set(tracks.map(({ group }) => group))];
    return groups.flatMap((name) => tracks.filter(({ group }) => group === name)
      .toSorted((one, other) => (place.get(one.row) ?? -1) - (place.get(other.row) ?? -1)));
  }

  /**
   * Move a track by a number of places among the shown tracks of its group, or the pinned ones.
   * @param {string} key
   * @param {number} places
   * @param {Track[]} tracks of the rank
   * @returns {boolean} whether it moved
   */
  move(key, places, tracks) {
    if (this.pinned.includes(key)) {
      const before = this.pinned.join();
      this.pinned = movedTo(this.pinned, key, this.pinned.indexOf(key) + places);
      return this.pinned.join() !== before;
    }
    const track = tracks.find(({ row }) => row === key);
    if (!track) return false;
    const group = this.ordered(tracks).filter((other) => other.group === track.group)
      .map(({ row }) => row);
    const shown = group.filter((row) => row === key || !this.hidden.has(row));
    const target = shown[shown.indexOf(key) + places];
    if (target === undefined) return false;
    const inGroup = new Set(group);
    this.moved = [...this.moved.filter((row) => !inGroup.has(row)),
      ...movedTo(group, key, group.indexOf(target))];
    return true;
  }
}
