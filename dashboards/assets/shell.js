// What the bar does in the browser: the address says what is shown, so all it does is go there.
(() => {
  // Dash's own links announce a new address by this event; its router listens for it.
  const announce = () => window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));

  const here = () => location.pathname + location.search;

  window.traceprof = {
    // Go to a view; the browser's way back leads here.
    go(href, { stay = false } = {}) {
      if (href === here()) return;
      history.pushState({}, "", href);
      announce();
      if (!stay) window.scrollTo(0, 0);
    },
    // Note in the address what the view shows, without drawing the page anew.
    note(href) {
      history.replaceState(history.state, "", href);
    },
  };

  const same = (numbers, text) => (numbers ?? []).join(",") === (text ?? "");

  const REDRAWN_MS = 250; // at the earliest

  const nothing = () => window.dash_clientside.no_update;

  async function untilOver(waiting) {
    const rows = document.getElementById("rows");
    let seen = 0;
    for (;;) {
      try {
        const state = await (await fetch(`/progress?previews=${seen}`)).json();
        if (state.is_over) break;
        const { done, expected, previews } = state;
        if (previews > seen) {
          seen = previews;
          waiting.classList.add("beside");
          window.dash_clientside.set_props("ready", { data: previews });
          await new Promise((go) => setTimeout(go, REDRAWN_MS));
        }
        document.getElementById("progress").value = expected ? done / expected : 0;
        const written = [done, expected].map((each) => each.toLocaleString("en"));
        rows.textContent = expected ? `${written[0]} of ${written[1]} rows` : "";
        if (seen && done >= expected) {
          waiting.querySelector("p").textContent = "Looking for findings …";
        }
      } catch {
        waiting.querySelector("p").textContent =
          "traceprof has stopped: the terminal that it ran in says why.";
        return;
      }
    }
    window.dash_clientside.set_props("ready", { data: true });
  }

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
      // A click on a chart leads where the place of that point says.
      follow(clicked, figure, places) {
        const point = clicked?.points?.[0];
        if (!point || !places?.length) return nothing();
        const [row, index] = Array.isArray(point.pointNumber)
          ? point.pointNumber
          : [figure.data[point.curveNumber].meta, point.pointNumber];
        const href = places[row]?.[index];
        if (href) window.traceprof.go(href);
        return nothing();
      },
      // Zooming a chart of time draws the page anew for that time, and puts it into the address.
      zoom(changed, figure) {
        const base = figure?.layout?.meta?.base;
        if (base === undefined || !changed) return nothing();
        const url = new URL(location.href);
        const axis = Object.keys(changed).find((key) => /^xaxis\d*\.range\[0\]$/.test(key));
        if (axis) {
          const limits = [changed[axis], changed[axis.replace("[0]", "[1]")]];
          const [start, end] = limits.map((each) => BigInt(base) + BigInt(Math.round(each * 1e9)));
          if (end <= start) return nothing();
          url.searchParams.set("start", start);
          url.searchParams.set("end", end);
        } else if (Object.keys(changed).some((key) => /^xaxis\d*\.autorange$/.test(key))) {
          url.searchParams.delete("start");
          url.searchParams.delete("end");
        } else {
          return nothing();
        }
        window.traceprof.go(url.pathname + url.search.replaceAll("%2C", ","), { stay: true });
        return nothing();
      },
      // While the reports are read: say how far that is, and show the page when it is over. A
      // number stands for a preview of what is known so far.
      watch(ready) {
        const waiting = document.getElementById("waiting");
        if (ready === true) waiting.hidden = true;
        else if (ready === false) untilOver(waiting);
        return nothing();
      },
      save(clicks) {
        return clicks ? true : nothing();
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
