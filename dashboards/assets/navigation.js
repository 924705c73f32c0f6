// @ts-check
// Navigation between views: the address defines what is shown.
import { toOverview } from "./address.js";

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

/**
 * What a click on a link to a view does: it stays in the page, unless it asks for another tab or window.
 * @param {string} href
 */
export const following = (href) => (/** @type {MouseEvent} */ event) => {
  if (event.ctrlKey || event.metaKey || event.shiftKey) return;
  event.preventDefault();
  go(href);
};

const CARD_MS = 100;
const MAX_TRIES = 100;

/** @param {Element} card of a finding */
function unfold(card) {
  if (card instanceof HTMLDetailsElement) card.open = true;
}

/** Show the card of a finding that a link on its page leads to, and the picture in a card that unfolds. */
export function unfoldLinked() {
  document.addEventListener("click", ({ target }) => {
    const link = target instanceof Element && target.closest("a[href^='#finding-']");
    const card = link && document.getElementById(link.getAttribute("href")?.slice(1) ?? "");
    if (card) unfold(card);
  });
  document.addEventListener("toggle", ({ target }) => {
    const picture = target instanceof Element && target.querySelector(":scope > .columns figure img:not([src])");
    if (picture instanceof HTMLImageElement) picture.src = picture.dataset.src ?? "";
  }, true); // it does not bubble
}

/** @param {string} id */
async function reveal(id) {
  for (let tries = 0; tries < MAX_TRIES; tries += 1) {
    const element = document.getElementById(id);
    if (element) {
      unfold(element);
      element.scrollIntoView({ block: "start" });
      return;
    }
    await new Promise((resolve) => { setTimeout(resolve, CARD_MS); });
  }
}

/** @param {string} finding */
export function showCard(finding) {
  go(toOverview(location.href));
  return reveal(`finding-${finding}`);
}
