// @ts-check
// Navigation between views: the address defines what is shown.

/**
 * Go to a view, unless it is null; the browser's back button returns to this one.
 * @param {string | null} href
 * @param {{ stay?: boolean }} [how] stay: keep the scroll position
 */
export function go(href, { stay = false } = {}) {
  if (href === null || href === location.pathname + location.search) return;
  history.pushState({}, "", href);
  // Dash's own links announce a new address by this event; its router listens for it.
  window.dispatchEvent(new CustomEvent("_dashprivate_pushstate"));
  if (!stay) window.scrollTo(0, 0);
}
