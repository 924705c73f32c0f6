// @ts-check
// The reader's notes: views that are kept, each with a text or, as a bookmark, without one. The
// server keeps them; see dashboards/server/notes.py.
import { following } from "./navigation.js";
import { button, make } from "./elements.js";

/** @typedef {{ href: string, text: string, where: string }} Note */
/** @typedef {{ file: string | null, notes: Note[] }} Notes */

/** The event of the window when notes were read or changed; its detail is all of them. */
export const KEPT = "traceprof:notes";
/** The event of the window before a view is kept: its address must hold all of the view. */
export const KEEPING = "traceprof:keeping";

const place = () => /** @type {HTMLElement} */ (document.getElementById("notes"));

/**
 * @param {string} method
 * @param {{ href: string, text: string }} [note]
 * @returns {Promise<Notes>}
 */
async function ask(method, note) {
  const headers = { "Content-Type": "application/json" };
  const reply = await fetch("/notes", note ? { method, headers, body: JSON.stringify(note) } : {});
  if (!reply.ok) throw new Error(`the note cannot be kept: ${reply.status}`);
  return reply.json();
}

/** @param {Note} note */
function entryOf({ href, text, where }) {
  const link = make("a", { href, onclick: following(href) }, where);
  const remove = button("×", `remove the note on ${where}`, () => change("DELETE", { href, text }));
  return make("li", {}, make("div", {}, link, remove), ...(text ? [make("p", {}, text)] : []));
}

/** @param {string | null} file */
export const keptText = (file) =>
  (file ? `kept in ${file}` : "kept until traceprof ends; traceprof dashboard --notes FILE keeps them");

/** What is kept now. */
export const readNotes = () => ask("GET");

/** @param {Notes} state */
function show({ file, notes }) {
  window.dispatchEvent(new CustomEvent(KEPT, { detail: notes }));
  const text = make("textarea", {
    rows: 3, maxlength: 2000, "aria-label": "note", placeholder: "what is to be seen here; without a text, a bookmark",
  });
  const keep = () => {
    window.dispatchEvent(new Event(KEEPING));
    change("POST", { href: location.pathname + location.search, text: text.value });
  };
  place().replaceChildren(
    make("header", {}, make("h2", {}, "Notes"), make("span", { class: "note" }, keptText(file)),
      button("×", "close the notes", toggleNotes)),
    text, make("button", { type: "button", class: "plain", onclick: keep }, "Keep this view"),
    make("ul", {}, ...notes.toReversed().map((note) => entryOf(note))),
  );
}

/** @param {unknown} error */
const fail = (error) =>
  place().append(make("p", { role: "alert" }, String(/** @type {Error} */ (error).message)));

/**
 * @param {string} method
 * @param {{ href: string, text: string }} note
 */
async function change(method, note) {
  try {
    show(await ask(method, note));
    place().querySelector("textarea")?.focus(); // Escape closes what holds the focus
  } catch (error) {
    fail(error);
  }
}

/** Open the notes, or close them. */
export async function toggleNotes() {
  const notes = place();
  notes.hidden = !notes.hidden;
  document.getElementById("notes-open")?.setAttribute("aria-expanded", String(!notes.hidden));
  if (notes.hidden) return;
  try {
    show(await readNotes());
    notes.querySelector("textarea")?.focus();
  } catch (error) {
    fail(error);
  }
}

/** Let M open the notes on every page, and Escape close them. */
export function listenForNotes() {
  document.addEventListener("keydown", (event) => {
    const { target } = event;
    const isText = target instanceof Element && target.closest("input, textarea, select");
    const isOpen = place() && !place().hidden;
    const opens = event.key.toLowerCase() === "m" && !isText && !event.ctrlKey && !event.metaKey && !event.altKey;
    const closes = event.key === "Escape" && isOpen && target instanceof Element && target.closest("#notes");
    if (!place() || !(opens || closes)) return;
    event.preventDefault();
    toggleNotes();
  });
}
