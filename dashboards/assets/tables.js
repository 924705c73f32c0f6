// What tables do in the browser.

// Text that begins so is a formula to a spreadsheet, and a name in a trace can be anything.
const FORMULA = /^[=+\-@\t\r\n＝＋－＠]/;

// A cell of a saved table: a number with all of its digits and without separators, nothing where
// there is none, and text as text.
export function saved({ value }) {
  if (typeof value !== "string") return value ?? "";
  return FORMULA.test(value) ? `'${value}` : value;
}
