// @ts-check
// The parts of the timeline around its canvas: the bar above, the panel below, the tooltip.
// All text goes in through textContent: names are data, never markup.
import { Note, button, make, swatch } from "../elements.js";
import { showCard } from "../navigation.js";
import { follow, goToNamesake, showCollective, showHidden } from "./commands.js";
import { splitter } from "./splitter.js";
import { exactly, grouped, seconds } from "./time.js";

/** @import { Timeline } from "./timeline.js" */
/** @import { EventDetails, Evidence, FindingBrief, Matches } from "./types.d.ts" */

/** @type {Record<string, string>} */
const TEXTS = { compute: "all compute", copy: "copies", host: "API calls", nvtx: "ranges", other: "other kernels", place: "places" };
const KINDS = ["compute", "matmul", "attention", "convolution", "normalization", "elementwise",
  "reduction", "optimizer", "other", "communication", "copy", "host", "nvtx", "marks", "place"];
const KEYS = [
  ["wheel · W S", "zoom at the pointer"], ["drag · A D ← →", "move in time"],
  ["Shift + drag", "area: what ran there"], ["/ · N P · L", "search, next, previous, list"],
  ["K", "critical path"],
  ["Ctrl + drag", "zoom to a piece"], ["drag the time axis", "choose that time, on all pages"], ["B", "view before"], ["Home", "whole run"],
  ["↑ ↓", "scroll"], [", .", "previous, next event or evidence"], ["O", "next kernel of this name"],
  ["F", "fit the selection"], ["T E", "statistics, events"], ["C", "collective on all ranks"],
  ["I H U", "pin a row, hide it, show all"], ["[ ] · drag a name", "move a row"],
  ["Esc", "select nothing"],
];
const FIRST_KEYS = 5; // that are always shown
const NOT_LINKED = new Set(["K", "C", "drag the time axis"]); // for the timeline of a whole run only

/** @param {boolean} isLinked */
const keysOf = (isLinked) => (isLinked
  ? KEYS.filter(([key]) => !NOT_LINKED.has(key)).map(([key, what]) => [key, key === "Home" ? "whole step" : what])
  : KEYS);

export class TimelinePanel {
  /**
   * @param {Timeline} timeline that it is of
   * @param {boolean} isLinked whether it is one of several that move together
   */
  constructor(timeline, isLinked) {
    this.timeline = timeline;
    this.isLinked = isLinked;
    this.allKeys = false;
    const whole = isLinked ? "step" : "run";
    this.query = make("input", {
      type: "search", placeholder: "search by name", "aria-label": "search by name",
      maxlength: 4000, spellcheck: "false",
      title: "names and labels, such as AllReduce 67 MB; rank:0,3 · stream:7 · kind:copy (compute, communication,"
        + " copy, api, range, mark, step, place, python, sampled) · > 1 ms · < 20 us · sql:SELECT rank, start_ns … (page Query)",
    });
    this.matches = make("span", { class: "note", role: "status" });
    this.folded = make("ul", { class: "unseen", "aria-label": "folded ranks, in the time in view" });
    this.hidden = make("button", { type: "button", hidden: "", onclick: () => showHidden(timeline) });
    this.names = make("ul", { class: "timeline-names", hidden: "" });
    this.legend = KINDS.map((kind) =>
      make("li", { hidden: "" }, swatch(timeline.colors[kind], kind), TEXTS[kind] ?? kind));
    this.canvas = make("canvas", {
      tabindex: 0, role: "application",
      "aria-label": `timeline; ${keysOf(isLinked).map(([key, what]) => `${key}: ${what}`).join("; ")}`,
    });
    this.spacer = make("div");
    this.scroller = make("div", { class: "timeline-rows" }, this.canvas, this.spacer);
    this.detail = make("section", {
      class: "timeline-detail", "aria-live": "polite", "aria-label": "selection",
    });
    timeline.root.replaceChildren(
      make("div", { class: "timeline-bar" },
        make("div", { class: "timeline-search", role: "search" }, this.query, this.names),
        button("‹", "previous match (P)", () => timeline.search.go("previous")),
        button("›", "next match (N)", () => timeline.search.go("next")),
        button("list", "all matches in a list (L)", () => timeline.search.list()),
        this.matches,
        make("ul", { class: "legend" }, ...this.legend),
        this.hidden,
        button("statistics", "what ran in the area or in the view, by name (T)", () => timeline.areas.statistics()),
        button("events", "the events in the area or in the view, one by one (E)", () => timeline.areas.list()),
        ...(isLinked ? [] :
          [button("critical path", "what the end of the steps in view waited for (K)", () => timeline.path.toggle())]),
        button("back", "back to the view before (B)", () => timeline.back()),
        button("−", "zoom out (S)", () => timeline.zoom(2)),
        button("+", "zoom in (W)", () => timeline.zoom(0.5)),
        button("fit", "fit the selection (F)", () => timeline.fit()),
        button(`whole ${whole}`, `show the whole ${whole} (Home)`, () => timeline.home()),
      ),
      this.scroller, splitter(this.detail), this.detail, this.folded,
    );
    this.note = new Note(timeline.root);
  }

  /** @param {...HTMLElement} inside */
  show(...inside) {
    this.detail.hidden = false;
    const isHelp = inside[0].className === "timeline-keys";
    this.detail.classList.toggle("help", isHelp); // low, and higher once something is selected
    this.detail.replaceChildren(...inside);
  }

  showNothing() {
    if (this.isLinked && !this.allKeys) { // the page says how to use several
      this.detail.hidden = true;
      return;
    }
    const keys = keysOf(this.isLinked);
    const shown = this.allKeys ? keys : keys.slice(0, FIRST_KEYS);
    const text = this.allKeys ? "fewer keys" : "all keys";
    const toggle = make("button", {
      type: "button", "aria-expanded": String(this.allKeys), title: `${text} (?)`,
      onclick: () => this.toggleKeys(),
    }, text);
    this.show(
      make("dl", { class: "timeline-keys" },
        ...shown.map(([key, what]) => make("div", {}, make("dt", {}, key), make("dd", {}, what))),
        make("div", {}, toggle)),
    );
  }

  // Show the help for all keys and mouse actions, or only for the first ones needed.
  toggleKeys() {
    this.allKeys = !this.allKeys;
    this.showNothing();
  }

  /**
   * Say below what is shown why a key did nothing.
   * @param {string} text
   */
  explain(text) {
    this.detail.querySelector(".explained")?.remove();
    this.detail.append(make("p", { class: "note explained" }, text));
    this.detail.hidden = false;
    this.detail.scrollTop = this.detail.scrollHeight;
  }

  /**
   * Describe the strips of folded ranks, for screen readers.
   * @param {string[]} texts
   */
  describeStrips(texts) {
    const known = [...this.folded.children].map(({ textContent }) => textContent);
    if (texts.join("\n") === known.join("\n")) return;
    this.folded.replaceChildren(...texts.map((text) => make("li", {}, text)));
  }

  /** @param {number} count of rows that are hidden */
  showHiddenCount(count) {
    this.hidden.hidden = count === 0;
    this.hidden.textContent = `${count} hidden`;
    this.hidden.setAttribute("aria-label", `show the ${count} hidden rows (U)`);
  }

  /** @param {Set<string>} drawn the kinds in sight */
  showLegend(drawn) {
    for (const [index, kind] of KINDS.entries()) this.legend[index].hidden = !drawn.has(kind);
  }

  /** @param {string} text */
  showMessage(text) {
    this.show(make("p", { class: "note" }, text));
  }

  /** @param {EventDetails} event */
  showEvent(event) {
    /** @type {[string, string][]} */
    const facts = [
      [event.kind === "marks" ? "time" : "start", `${seconds(event.begin)} · ${event.start} ns`],
      event.kind === "marks" ? ["what", "a mark of the program"] : ["duration", exactly(event.length)],
      ...(event.category ? [/** @type {[string, string]} */ (["category", event.category])] : []),
      ...event.facts,
    ];
    const kind = event.category ?? event.kind;
    const links = event.links.map((other) =>
      button(`${other.relation} ${other.label}`,
        `show both, and select ${other.label}`, () => follow(this.timeline, other)));
    const together = event.kind === "communication" && event.id.includes(".op.") && !this.isLinked
      ? [button("on all ranks", "show this collective on all of its ranks (C)", () => showCollective(this.timeline))]
      : [];
    this.show(
      make("header", {}, swatch(this.timeline.colors[kind] ?? "", kind), make("h2", {}, event.label), ...together,
        button("fit", "fit the selection (F)", () => this.timeline.fit()),
        button("next of this name", "the next one of this name on this rank (O)", () => goToNamesake(this.timeline, "next")),
        ...links),
      this.#facts(facts),
      ...(event.name === event.label ? [] : [make("code", {}, event.name)]),
    );
  }

  /**
   * evidence: all of one finding; index: which of it is shown; brief: what the finding says.
   * @param {number} rank
   * @param {Evidence[]} evidence
   * @param {number} index
   * @param {FindingBrief} brief
   */
  showEvidence(rank, evidence, index, { title, advice, gain }) {
    const { finding, severity, label, start, end } = evidence[index];
    const others = evidence.map((interval, number) => {
      const show = () => this.timeline.showEvidence(rank, interval);
      const numbered = button(String(number + 1), interval.label, show);
      if (number === index) numbered.setAttribute("aria-current", "true");
      return numbered;
    });
    this.show(
      make("header", {}, make("span", { class: `severity ${severity}` }, severity),
        make("h2", {}, finding), make("span", { class: "note" }, `rank ${rank} · evidence`),
        ...others, button("fit", "fit the selection (F)", () => this.timeline.fit()),
        ...(title ? [button("to its card", `show ${finding} on the overview`, () => showCard(finding))] : [])),
      make("p", {}, label),
      this.#facts([["start", seconds(start)], ["duration", exactly(end - start)]]),
      make("p", { class: "note" }, [title, gain].filter(Boolean).join("; ")),
      ...(advice.length ? [make("ul", { class: "timeline-advice", "aria-label": "what to do" },
        ...advice.map((text) => make("li", {}, text)))] : []),
    );
  }

  /** @param {[string, string][]} facts */
  #facts(facts) {
    return make("dl", { class: "timeline-facts" },
      ...facts.map(([name, value]) => make("div", {}, make("dt", {}, name), make("dd", {}, value))));
  }

  /** @param {Matches} matches */
  showMatches(matches) {
    const { count, next, names, num_names: numNames } = matches;
    const said = next ? `${grouped(next.number)} of ${grouped(count)}` : "nothing is found";
    const soFar = next ? `${grouped(count)} so far` : "nothing so far";
    this.matches.textContent = matches.is_all ? said : `${soFar}: reading calls and ranges …`;
    const listed = names.map((name) =>
      make("li", {}, make("button", {
        type: "button", title: name.label, onclick: () => this.timeline.search.goTo(name.label),
      }, name.label), make("span", { class: "note" }, grouped(name.count))));
    const rest = numNames - listed.length;
    if (rest > 0) listed.push(make("li", { class: "note" }, `${grouped(rest)} more names`));
    this.names.replaceChildren(...listed);
    this.names.hidden = numNames < 2;
  }

  forgetMatches() {
    this.matches.textContent = "";
    this.names.hidden = true;
  }
}
