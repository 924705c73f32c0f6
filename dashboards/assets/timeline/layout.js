// Which rows of the timeline stand where: ranks, and in them groups of tracks that can be folded.
import { grouped } from "./time.js";

const HEIGHTS = { rank: 28, group: 22, message: 30, gpu: 24, host: 15 };
const GAP = 2; // below a track
const OPERATIONS = "op"; // the source of what the GPU did

export class TimelineLayout {
  // numbers: the ranks'; labels: by number; compares: whether several ranks were asked for: then
  // what their GPUs did is shown at first.
  constructor(numbers, labels, compares) {
    Object.assign(this, { numbers, labels, compares });
    this.folds = new Map(); // by group: whether the reader folded it
    this.rows = [];
  }

  // Lay out the rows of all ranks, each with its place `y`; returns their height together.
  place(opened, ranks) {
    this.rows = [];
    let y = 0;
    const add = (type, height, row) => {
      this.rows.push({ type, y, height, ...row });
      y += height + (type === "track" ? GAP : 0);
    };
    for (const number of this.numbers) {
      const folded = !opened.has(number);
      if (this.numbers.length > 1) {
        const label = this.labels[number];
        add("rank", HEIGHTS.rank, { label, number, folded, foldable: true });
      }
      const rank = ranks.get(number);
      const message = this.#message(number, rank);
      if (folded) continue;
      if (message) add("message", HEIGHTS.message, { label: message, number });
      else this.#placeRank(number, rank.rows, add);
    }
    return y;
  }

  #message(number, rank) {
    if (rank?.state === "failed") return rank.error;
    if (rank?.state !== "ready") return `Reading the rows of rank ${number} …`;
    return rank.rows.length ? null : "This report holds no event of this rank.";
  }

  #placeRank(number, tracks, add) {
    let group = "";
    for (const track of tracks) {
      const key = `${number} ${track.group}`;
      const isGpu = track.source === OPERATIONS;
      const closed = track.folded || (this.compares && !isGpu);
      const folded = track.group !== "" && (this.folds.get(key) ?? closed);
      if (track.group !== group && track.group !== "") {
        const hides = tracks.filter((other) => other.group === track.group);
        const events = hides.reduce((sum, hidden) => sum + hidden.events, 0);
        const note = folded ? `${grouped(events)} events` : "";
        add("group", HEIGHTS.group,
          { label: track.group, key, folded, foldable: true, number, note, hides });
      }
      group = track.group;
      if (!folded) {
        add("track", isGpu ? HEIGHTS.gpu : HEIGHTS.host, { label: track.label, track, number });
      }
    }
  }

  // The row of a track; where it is folded, what it is folded into.
  rowOf(key) {
    return this.rows.find((row) =>
      row.track
        ? row.track.row === key
        : row.folded && row.hides?.some((track) => track.row === key));
  }

  // Fold a group, or unfold it.
  fold(group) {
    this.folds.set(group.key, !group.folded);
  }
}
