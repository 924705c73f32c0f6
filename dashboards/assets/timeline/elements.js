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
