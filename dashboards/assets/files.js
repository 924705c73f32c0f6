// @ts-check
// Says on every page which reports are no longer what was read, and offers to read them anew.
import { make } from "./elements.js";

const POLL_MS = 2000;
const MAX_NAMES = 3;

/** @typedef {{ name: string, what: string }} Change */

/**
 * What became of files: "a.sqlite was replaced", or "a.sqlite and 2 more are no longer there".
 * @param {Change[]} changes
 */
export function changesText(changes) {
  const kinds = [...new Set(changes.map(({ what }) => what))];
  return kinds.map((kind) => {
    const names = changes.filter(({ what }) => what === kind).map(({ name }) => name);
    const rest = names.length - MAX_NAMES;
    const listed = [...names.slice(0, MAX_NAMES), ...(rest > 0 ? [`${rest} more`] : [])];
    const subject = listed.length > 1 ? `${listed.slice(0, -1).join(", ")} and ${listed.at(-1)}` : listed[0];
    const verb = kind === "no longer there" ? ["is", "are"] : ["was", "were"];
    return `${subject} ${verb[names.length > 1 ? 1 : 0]} ${kind}`;
  }).join("; ");
}

async function readAnew() {
  const reply = await fetch("/anew", { method: "POST" });
  if (reply.ok) location.reload();
}

/**
 * @param {HTMLElement} place
 * @param {{ changes: Change[], can_read_anew: boolean }} state
 */
function show(place, { changes, can_read_anew: canReadAnew }) {
  const text = changes.length
    ? `${changesText(changes)} since it was read: this page shows what was read then.` : "";
  if (place.dataset.text === `${text} ${canReadAnew}`) return;
  place.dataset.text = `${text} ${canReadAnew}`;
  const anew = make("button", { type: "button", class: "plain", onclick: readAnew }, "Read it anew");
  place.replaceChildren(...(text ? [make("p", {}, text)] : []), ...(text && canReadAnew ? [anew] : []));
}

async function look() {
  const place = document.getElementById("changed");
  try {
    const reply = place && !document.hidden ? await fetch("/files") : null;
    if (place && reply?.ok) show(place, await reply.json());
  } catch { /* the server has ended, which the page says elsewhere */ }
}

/** Look at the files from now on. */
export function watchFiles() {
  setInterval(look, POLL_MS);
  document.addEventListener("visibilitychange", look);
}
