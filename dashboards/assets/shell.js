// What the bar does in the browser: the address says what is shown, so all it does is go there.
(() => {
  // Dash's own links announce a new address by this event; its router listens for it.
  const announce = () => window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));

  const here = () => location.pathname + location.search;

  window.traceprof = {
    // Go to a view; the browser's way back leads here.
    go(href) {
      if (href === here()) return;
      history.pushState({}, "", href);
      announce();
      window.scrollTo(0, 0);
    },
    // Note in the address what the view shows, without drawing the page anew.
    note(href) {
      history.replaceState(history.state, "", href);
    },
  };

  const same = (numbers, text) => (numbers ?? []).join(",") === (text ?? "");

  const nothing = () => window.dash_clientside.no_update;

  window.dash_clientside = Object.assign({}, window.dash_clientside, {
    shell: {
      // Keep the page and what it shows; only the reports and ranks change.
      choose(reports, ranks) {
        const url = new URL(location.href);
        const chosen = { report: reports, rank: ranks };
        const changed = Object.entries(chosen).filter(
          ([key, numbers]) => !same(numbers, url.searchParams.get(key)),
        );
        for (const [key, numbers] of changed) {
          url.searchParams.delete(key);
          if (numbers?.length) url.searchParams.set(key, numbers.join(","));
        }
        if (changed.length) {
          // Evidence is of one rank.
          url.searchParams.delete("finding");
          url.searchParams.delete("evidence");
          window.traceprof.go(url.pathname + url.search.replaceAll("%2C", ","));
        }
        return nothing();
      },
      entitle(title) {
        document.title = title ? `${title} · traceprof` : "traceprof";
        return nothing();
      },
      switch_theme() {
        window.traceprofTheme.toggle();
        return nothing();
      },
    },
  });
})();
