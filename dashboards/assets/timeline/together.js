// @ts-check
// One collective on all of its ranks: the last one to come ends the wait of all others.
import { collectiveContent } from "./lists.js";
/** @import { Timeline } from "./timeline.js" */
/** @import { Collective, EventDetails, Spread, Together } from "./types.d.ts" */

const MAX_ROWS = 12; // that stay on top, below each other; their ranks are opened
const SHARE = 0.5; // of the view
const STEP_SHARE = 0.9;

const waited = (/** @type {Together["members"][number]} */ { isLast, wait }) =>
  (isLast ? Infinity : Number(wait ?? 0));

/**
 * The rows of the members to show together, by rank; of many, the last one to come and
 * those that waited longest for it.
 * @param {Together["members"]} members
 * @param {number} most
 */
export function rowsOfMembers(members, most) {
  const shown = members.filter(({ row }) => row !== null)
    .toSorted((one, other) => waited(other) - waited(one)).slice(0, most);
  return shown.toSorted((one, other) => one.rank - other.rank).flatMap(({ row }) => row ?? []);
}

export class TimelineTogether {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    /** @type {Together | null} */
    this.shown = null;
  }

  forget() {
    this.shown = null;
    this.timeline.layout.together = [];
  }

  /**
   * Show a communication kernel's collective on all of its ranks, whose rows stay on top meanwhile.
   * @param {EventDetails} event
   */
  async show(event) {
    const { timeline } = this;
    const together = await this.#read(event.id);
    if (!together) return;
    timeline.forgetSelection();
    timeline.selected = event;
    this.#put(together);
    timeline.panel.show(...collectiveContent(together, timeline));
    const { members } = together;
    timeline.frame(Math.min(...members.map(({ begin }) => begin)),
      Math.max(...members.map(({ begin, length }) => begin + length)), SHARE);
    timeline.reveal(event.row);
    timeline.refresh();
  }

  /**
   * Show the operation to which a rank came latest, on all of its ranks; without one the time alone.
   * @param {Spread} spread
   */
  async showLate({ begin, stop, late }) {
    const { timeline } = this;
    timeline.frame(begin, stop, STEP_SHARE);
    if (late) await this.show(await timeline.data.event(late.id));
  }

  /**
   * Show with the evidence of a straggler the ranks that waited for it.
   * @param {string} id of the kernel to which it came late
   * @param {() => void} reveal brings the evidence into sight
   */
  async reveal(id, reveal) {
    const { timeline } = this;
    const evidence = timeline.chosenEvidence;
    const together = await this.#read(id);
    if (!together || timeline.chosenEvidence !== evidence) return;
    this.#put(together);
    timeline.panel.detail.append(...collectiveContent(together, timeline));
    reveal();
  }

  /** @param {Together} together */
  #put(together) {
    this.shown = together;
    this.timeline.layout.together = rowsOfMembers(together.members, MAX_ROWS);
  }

  /**
   * A collective by one of its kernels, with the rows of its ranks; null where it is not known.
   * @param {string} id
   */
  async #read(id) {
    const { timeline } = this;
    const { data, panel } = timeline;
    /** @type {Collective} */
    let collective;
    try {
      collective = await data.answer("collective", { id });
    } catch (error) {
      panel.showMessage(/** @type {Error} */ (error).message);
      return null;
    }
    const members = collective.members.map((member) => {
      const begin = data.toOffset(member.start);
      return {
        ...member, begin, length: data.toOffset(member.end) - begin,
        isLast: member.rank === collective.last,
      };
    });
    for (const row of rowsOfMembers(members, MAX_ROWS)) {
      const rank = Number(row.split(".")[0]);
      if (timeline.numbers.includes(rank)) timeline.opened.add(rank);
    }
    timeline.layout.compares = true; // GPU rows only, so that they are near each other
    await Promise.all([...timeline.opened].map((rank) => data.loadRank(rank)));
    return { ...collective, members };
  }
}
