// @ts-check
// The timeline's part of the page's address: read, and written.
import { parameter, scopeOf, withTime, withTimeline } from "../address.js";
import { go } from "../navigation.js";
import { namedEvidence } from "./evidence.js";

/** @import { Timeline } from "./timeline.js" */

const NOTE_MS = 250;

const shown = (/** @type {import("../address.js").Key} */ key) => parameter(location.href, key);

export class PageAddress {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
    this.noting = 0; // a timer, until changes are noted in the address
    this.scope = ""; // the choices for all pages, as in the address
    this.numRestoring = 0; // number of addresses that are still being applied
  }

  /** Apply the address, also when the reader goes back. */
  async restore() {
    this.numRestoring += 1;
    try {
      await this.#restore();
    } finally {
      this.numRestoring -= 1;
    }
  }

  async #restore() {
    const { timeline } = this;
    const { data, layout, panel } = timeline;
    this.scope = scopeOf(location.href);
    timeline.forgetSelection();
    panel.query.value = shown("search") ?? "";
    panel.forgetMatches();
    panel.showHiddenCount(layout.arrangement.restore(shown));
    panel.showMessage("Reading the rows …");
    const ranks = await Promise.all([...timeline.opened].map((number) => data.loadRank(number)));
    panel.showNothing();
    const [start, end] = [shown("start"), shown("end")]
      .map((time) => (time === null ? null : data.toOffset(time)));
    if (start === null && end === null) timeline.showWhole();
    else {
      const extent = timeline.extent();
      const asked = { start: start ?? extent.start, end: end ?? extent.end };
      timeline.data.asked = asked;
      timeline.setView({ start: asked.start, span: asked.end - asked.start });
    }
    const select = shown("select");
    const finding = shown("finding");
    if (select) await timeline.select(select, { scroll: true });
    else if (finding) {
      const index = Number(shown("evidence") ?? 0);
      const evidence = namedEvidence(ranks[0]?.evidence ?? [], finding, index, timeline.view);
      if (evidence) await timeline.chooseEvidence([...timeline.opened][0], evidence);
    }
    timeline.path.restore(shown("path"));
    if (panel.query.value) timeline.search.count();
    if (shown("list")) timeline.search.list(shown("list") ?? undefined);
    await layout.openMore(timeline, timeline.more.splice(0));
  }

  /**
   * @param {number} start
   * @param {number} end
   */
  choose(start, end) {
    const { data } = this.timeline;
    const [first, last] = [data.toTime(start), data.toTime(Math.max(end, start + 1))];
    go(withTime(location.href, String(first), String(last)), { stay: true });
  }

  /**
   * Keep the address up to date: a jump makes an entry in the history, a movement does not.
   * @param {boolean} jump
   */
  note(jump) {
    clearTimeout(this.noting);
    if (jump) this.#write("pushState");
    else this.noting = setTimeout(() => this.#write("replaceState"), NOTE_MS);
  }

  /** Write what waits to be noted, before somebody reads the address. */
  noteNow() {
    if (!this.noting) return;
    clearTimeout(this.noting);
    this.#write("replaceState");
  }

  /** @param {"pushState" | "replaceState"} method */
  #write(method) {
    const { timeline } = this;
    this.noting = 0;
    // Until the server has answered, this timeline stands under the address of what comes next.
    if (scopeOf(location.href) !== this.scope) return;
    if (!timeline.root.isConnected || !timeline.view) return;
    // The address still holds a choice that is not applied yet, and would lose it.
    if (this.numRestoring) {
      this.noting = setTimeout(() => this.#write(method), NOTE_MS);
      return;
    }
    const href = withTimeline(location.href, {
      start: timeline.data.toTime(timeline.view.start),
      end: timeline.data.toTime(timeline.view.start + Math.max(timeline.view.span, 1)),
      select: timeline.selected?.id ?? null,
      finding: timeline.chosenEvidence?.finding ?? null,
      evidence: timeline.chosenEvidence?.evidence ?? null,
      search: timeline.panel.query.value || null,
      list: timeline.search.order,
      path: timeline.path.step || null,
      ...timeline.layout.arrangement.parameters,
    });
    history[method](history.state, "", href);
  }
}
