// @ts-check
// Elements of the page: text goes in as text, since names are data, never markup.

/**
 * An element with attributes, and texts or elements inside.
 * @template {keyof HTMLElementTagNameMap} Tag
 * @param {Tag} tag
 * @param {Record<string, any>} [attributes]
 * @param {...(Node | string)} inside
 */
export function make(tag, attributes = {}, ...inside) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value);
  }
  element.append(...inside);
  return element;
}

/**
 * @param {string} text
 * @param {string} title
 * @param {() => void} act
 */
export const button = (text, title, act) =>
  make("button", { type: "button", title, "aria-label": title, onclick: act }, text);

/**
 * Have the browser save a file.
 * @param {Blob} file
 * @param {string} name
 */
export function download(file, name) {
  const href = URL.createObjectURL(file);
  make("a", { href, download: name }).click();
  URL.revokeObjectURL(href);
}

/**
 * A sample of a colour, beside its name.
 * @param {string} color
 * @param {string} [kind]
 */
export function swatch(color, kind = "") {
  const shown = make("span", { class: `swatch ${kind}` });
  shown.style.backgroundColor = color;
  return shown;
}

/** The note beside the pointer, which screen readers read aloud, too. */
export class Note {
  /** @param {HTMLElement} root that it is a part of */
  constructor(root) {
    this.shown = make("div", { class: "pointer-note", hidden: "" });
    this.said = make("div", { class: "unseen", role: "status" });
    root.append(this.shown, this.said);
  }

  /**
   * @param {string[]} lines the first one stands out
   * @param {number} x in the window
   * @param {number} y
   */
  show(lines, x, y) {
    this.shown.replaceChildren(...lines.map((line, index) => make(index ? "div" : "strong", {}, line)));
    this.shown.hidden = false;
    const { offsetWidth, offsetHeight } = this.shown;
    const left = Math.min(x + 14, innerWidth - offsetWidth - 8);
    const top = y + 18 + offsetHeight < innerHeight ? y + 18 : y - offsetHeight - 10;
    this.shown.style.left = `${Math.max(left, 8)}px`;
    this.shown.style.top = `${top}px`;
  }

  /** @param {string} text */
  say(text) {
    this.said.textContent = text;
  }

  hide() {
    this.shown.hidden = true;
  }
}
