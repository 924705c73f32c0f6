// Searches the ranks that are open for events by their names.

export class TimelineSearch {
  constructor(timeline) {
    this.timeline = timeline;
  }

  // Say how many match, without going anywhere.
  async count() {
    const matches = await this.#ask("next", null);
    if (matches) this.timeline.panel.showMatches(matches);
  }

  // Select the next or the previous match.
  async go(direction) {
    const { panel, selected } = this.timeline;
    const matches = await this.#ask(direction, selected?.id);
    if (!matches) return;
    panel.showMatches(matches);
    panel.names.hidden = true;
    if (matches.next) await this.timeline.select(matches.next.id, { go: true });
  }

  // Search for a name that the panel lists; of a long one it shows the beginning.
  goTo(label) {
    this.timeline.panel.query.value = label.replace(/…$/, "");
    this.go("next");
  }

  async #ask(direction, from) {
    const { data, opened, panel, view } = this.timeline;
    const text = panel.query.value;
    if (!text || !view) {
      panel.forgetMatches();
      return null;
    }
    try {
      return await data.search([...opened], text, direction, view.start, from);
    } catch (error) {
      panel.showMessage(error.message);
      return null;
    }
  }
}
