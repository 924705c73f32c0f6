// What tables do in the browser; dash-ag-grid finds these functions by name.
(() => {
  // Text that begins so is a formula to a spreadsheet, and a name in a trace can be anything.
  const FORMULA = /^[=+\-@\t\r\n＝＋－＠]/;

  window.dashAgGridFunctions = Object.assign({}, window.dashAgGridFunctions, {
    // A cell of a saved table: text stays text, a number is written as it is shown.
    saved({ value, formatValue }) {
      if (typeof value !== "string") return formatValue(value);
      return FORMULA.test(value) ? `'${value}` : value;
    },
  });
})();
