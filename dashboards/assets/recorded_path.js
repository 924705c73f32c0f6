// @ts-check
// A path of a canvas that also knows what SVG writes for it.

const TOUCHING = 0.1; // pixels between rectangles that become one

export const rounded = (/** @type {number} */ number) => String(Math.round(number * 100) / 100);

const written = (/** @type {number[]} */ numbers) => numbers.map((number) => rounded(number)).join(" ");

/** @type {Record<string, (...numbers: number[]) => string>} */
const COMMANDS = {
  moveTo: (...point) => `M${written(point)}`,
  lineTo: (...point) => `L${written(point)}`,
  bezierCurveTo: (...points) => `C${written(points)}`,
  closePath: () => "z",
  arc: (x = 0, y = 0, radius = 0) => { // a whole circle: nobody draws less
    const half = (/** @type {number} */ end) => `A${written([radius, radius])} 0 1 1 ${written([end, y])}`;
    return `M${written([x + radius, y])}${half(x - radius)}${half(x + radius)}z`;
  },
};

/** Rectangles of one height that touch become one. */
export class RecordedPath extends Path2D {
  static NAMES = ["rect", ...Object.keys(COMMANDS)];
  #text = "";
  /** @type {number[] | null} */
  #last = null; // rectangle, to which another may be added

  /** @param {string | Path2D} [path] to begin with */
  constructor(path) {
    super(path ?? "");
    if (path instanceof RecordedPath) this.#text = path.text;
  }

  /**
   * @param {string} name
   * @param {number[]} numbers
   */
  add(name, numbers) {
    if (name === "rect") {
      this.#addRect(numbers);
      return;
    }
    const { text } = this;
    const command = (COMMANDS[name]?.(...numbers) ?? "").replace(text ? "" : "L", text ? "" : "M"); // a line begins a path, too
    if (!text.endsWith(command)) this.#text = text + command;
  }

  /** @param {number[]} rect */
  #addRect([x = 0, y = 0, width = 0, height = 0]) {
    const [left = NaN, top, wide = 0, high] = this.#last ?? [];
    const touches = x >= left && x - left - wide < TOUCHING && top === y && high === height;
    if (!touches) this.#text = this.text;
    this.#last = touches ? [left, y, Math.max(x + width - left, wide), height] : [x, y, width, height];
  }

  /** All that was added, as the attribute `d` has it. */
  get text() {
    if (this.#last) {
      const [x, y, width, height] = this.#last.map((number) => rounded(number));
      this.#text += `M${x} ${y}h${width}v${height}H${x}z`;
      this.#last = null;
    }
    return this.#text;
  }
}
for (const name of RecordedPath.NAMES) {
  const { prototype } = /** @type {any} */ (RecordedPath);
  const draw = prototype[name];
  prototype[name] = function add(/** @type {number[]} */ ...numbers) {
    draw.apply(this, numbers);
    this.add(name, numbers);
  };
}
