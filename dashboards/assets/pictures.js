// @ts-check
// Pictures of a page, as it stands: an SVG file that holds the page with its styles and charts, and
// the same as PNG with at least two pixels for each. A caption says what it shows, and its address.

const SVG = "http://www.w3.org/2000/svg";
const XHTML = "http://www.w3.org/1999/xhtml";

/**
 * The text of all styles of the page.
 * @param {Iterable<CSSStyleSheet>} sheets
 */
export const stylesOf = (sheets) =>
  [...sheets].flatMap(({ cssRules }) => [...cssRules].map(({ cssText }) => cssText)).join("\n");

/**
 * The file name of a page's picture: "launch-queue.png".
 * @param {string} title
 * @param {string} kind
 */
export const fileOf = (title, kind) =>
  `${title.split(" · ")[0]?.toLowerCase().replaceAll(/\W+/g, "-") || "traceprof"}.${kind}`;

/** @param {HTMLElement} page */
async function copyOf(page) {
  const copy = /** @type {HTMLElement} */ (page.cloneNode(true));
  const drawn = page.querySelectorAll("canvas");
  for (const [index, canvas] of copy.querySelectorAll("canvas").entries()) {
    const image = document.createElement("img");
    image.src = drawn[index].toDataURL();
    image.className = canvas.className;
    image.setAttribute("style", canvas.getAttribute("style") ?? "");
    const { width, height } = drawn[index].getBoundingClientRect();
    Object.assign(image.style, { width: `${width}px`, height: `${height}px` });
    canvas.replaceWith(image);
  }
  for (const image of copy.querySelectorAll("img[src^='/']")) { // a picture loads nothing
    const text = await (await fetch(/** @type {HTMLImageElement} */ (image).src)).text();
    image.setAttribute("src", `data:image/svg+xml,${encodeURIComponent(text)}`);
  }
  copy.querySelector(".caption")?.append(` · ${location.href}`);
  for (const unseen of copy.querySelectorAll(".unseen, .save, [hidden]")) unseen.remove();
  return copy;
}

/** The page as the text of an SVG file, and its size in pixels. */
async function pictured() {
  const page = /** @type {HTMLElement} */ (document.getElementById("page"));
  page.classList.add("pictured"); // shows the caption
  const copy = copyOf(page);
  const { width } = page.getBoundingClientRect();
  const height = Math.max(page.scrollHeight, page.offsetHeight);
  page.classList.remove("pictured");
  const { font, color, backgroundColor } = getComputedStyle(document.body);
  const svg = document.createElementNS(SVG, "svg");
  const sizes = { width: String(width), height: String(height), viewBox: `0 0 ${width} ${height}` };
  for (const [name, value] of Object.entries(sizes)) svg.setAttribute(name, value);
  svg.dataset["theme"] = document.documentElement.dataset["theme"]; // where style.css finds its colours
  const style = document.createElementNS(SVG, "style");
  style.textContent = stylesOf(document.styleSheets);
  const frame = document.createElementNS(SVG, "foreignObject");
  frame.setAttribute("width", "100%");
  frame.setAttribute("height", "100%");
  const body = document.createElementNS(XHTML, "div");
  body.setAttribute("style", `font: ${font.replaceAll('"', "'")}; color: ${color}; background: ${backgroundColor}`);
  body.append(await copy);
  frame.append(body);
  svg.append(style, frame);
  return { text: new XMLSerializer().serializeToString(svg), width, height };
}

/**
 * @param {Blob} file
 * @param {string} name
 */
function save(file, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(file);
  link.download = name;
  link.click();
  URL.revokeObjectURL(link.href);
}

/**
 * Save a picture of the page.
 * @param {"png" | "svg"} kind
 */
export async function savePicture(kind) {
  const { text, width, height } = await pictured();
  const name = fileOf(document.title, kind);
  if (kind === "svg") {
    save(new Blob([text], { type: "image/svg+xml" }), name);
    return;
  }
  const image = new Image();
  image.src = `data:image/svg+xml;charset=utf-8,${encodeURIComponent(text)}`;
  await image.decode();
  const canvas = document.createElement("canvas");
  [canvas.width, canvas.height] = [width, height].map((pixels) => Math.round(pixels * Math.max(2, devicePixelRatio)));
  canvas.getContext("2d")?.drawImage(image, 0, 0, canvas.width, canvas.height);
  canvas.toBlob((file) => { if (file) save(file, name); });
}
