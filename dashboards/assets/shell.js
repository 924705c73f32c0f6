// What the bar does in the browser: the address says what is shown, so all it does is go there.
// Dash finds these functions as `shell` in `dash_clientside`; see dashboards/shell.py.
import { ofPoint, withChoice, withZoom } from "./address.js";

const REDRAWN_MS = 250; // at the earliest

const unchanged = () => window.dash_clientside.no_update;

// Go to a view, unless it is null; the browser's way back leads here.
function go(href, { stay = false } = {}) {
  if (href === null || href === location.pathname + location.search) return;
  history.pushState({}, "", href);
  // Dash's own links announce a new address by this event; its router listens for it.
  window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
  if (!stay) window.scrollTo(0, 0);
}

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
        await new Promise((resolve) => { setTimeout(resolve, REDRAWN_MS); });
      }
      document.getElementById("progress").value = expected ? done / expected : 0;
      const written = [done, expected].map((count) => count.toLocaleString("en"));
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

// Keep the page and what it shows; only the reports and ranks change.
export function choose(reports, ranks) {
  go(withChoice(location.href, reports, ranks));
  return unchanged();
}

// A click on a chart leads where the place of that point says.
export function follow(clicked, figure, places) {
  go(ofPoint(clicked?.points?.[0], figure, places));
  return unchanged();
}

// Zooming a chart of time draws the page anew for that time, and puts it into the address.
export function zoom(changed, figure) {
  go(withZoom(location.href, figure?.layout?.meta?.base, changed), { stay: true });
  return unchanged();
}

// While the reports are read: say how far that is, and show the page when it is over. A number
// stands for a preview of what is known so far.
export function watch(ready) {
  const waiting = document.getElementById("waiting");
  if (ready === true) waiting.hidden = true;
  else if (ready === false) untilOver(waiting);
  return unchanged();
}

export function save(clicks) {
  return clicks ? true : unchanged();
}

export function entitle(title) {
  document.title = title ? `${title} · traceprof` : "traceprof";
  return unchanged();
}

export function switchTheme() {
  window.dispatchEvent(new CustomEvent("traceprof:switch-theme"));
  return unchanged();
}
