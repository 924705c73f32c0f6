// What tables do in the browser.

// Text that begins so is a formula to a spreadsheet, and a name in a trace can be anything.
const FORMULA = /^[=+\-@\t\r\n＝＋－＠]/;

// A cell of a saved table: text stays text, a number is written as it is shown.
export function saved({ value, formatValue }) {
  if (typeof value !== "string") return formatValue(value);
  return FORMULA.test(value) ? `'${value}` : value;
}
