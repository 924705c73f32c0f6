// Time on the timeline. A view's times are numbers: nanoseconds from a base, so that they are whole
// and exact up to 2^53 (104 days). Times of the report can be UTC and are BigInt.
(() => {
  const UNITS = [["s", 1e9], ["ms", 1e6], ["µs", 1e3], ["ns", 1]];

  // 12345678 → "12 345 678", with thin spaces.
  const grouped = (digits) => String(digits).replace(/\B(?=(\d{3})+(?!\d))/g, "\u2009");

  // A duration with three significant digits and its unit, as units.duration writes it.
  function duration(ns) {
    const size = Math.abs(ns);
    const [unit, scale] = UNITS.find(([, each]) => size >= each) ?? UNITS[3];
    const value = ns / scale;
    if (Number.isInteger(value) && Math.abs(value) < 1000) return `${value} ${unit}`;
    const digits = Math.abs(value) < 9.995 ? 2 : Math.abs(value) < 99.95 ? 1 : 0;
    return `${value.toFixed(digits)} ${unit}`;
  }

  // A time in seconds to the nanosecond, or to so many decimals: "1.593 948 425 s".
  function seconds(ns, decimals = 9) {
    const whole = Math.abs(Math.round(ns));
    const fraction = String(whole % 1e9).padStart(9, "0").slice(0, decimals);
    const groups = fraction.match(/\d{1,3}/g)?.join("\u2009");
    const sign = ns < 0 && whole ? "−" : "";
    return `${sign}${grouped(Math.floor(whole / 1e9))}${groups ? `.${groups}` : ""} s`;
  }

  // How far apart grid lines are: 1, 2 or 5 times a power of ten, at least `least` ns.
  function tickStep(least) {
    const power = 10 ** Math.floor(Math.log10(Math.max(least, 1)));
    return [1, 2, 5, 10].map((each) => each * power).find((each) => each >= least * 0.999);
  }

  // Grid lines of a view, with labels short enough to stand side by side.
  // Where a time in seconds would need too many digits, they count from `anchor`.
  function ticks(start, span, least) {
    const step = tickStep(least);
    const decimals = Math.max(0, Math.min(9, 9 - Math.floor(Math.log10(step))));
    const [unit, scale] = UNITS.find(([, each]) => step >= each) ?? UNITS[3];
    const anchor = decimals > 4 ? Math.floor(start / (scale * 1000)) * scale * 1000 : null;
    const list = [];
    for (let at = Math.ceil(start / step) * step; at <= start + span; at += step) {
      const label =
        anchor === null ? seconds(at, decimals) : `+${grouped(Math.round((at - anchor) / scale))} ${unit}`;
      list.push({ at, label });
    }
    return { list, anchor: anchor === null ? null : seconds(anchor, Math.max(0, decimals - 3)) };
  }

  // Zooming and panning leave a view inside these limits.
  const NARROWEST = 10;
  function clamped(view, extent) {
    const whole = Math.max(extent.end - extent.start, 1000);
    const span = Math.min(Math.max(view.span, NARROWEST), whole * 1.2);
    const most = extent.end - span * 0.2;
    const least = extent.start - span * 0.8;
    return { start: Math.min(Math.max(view.start, least), most), span };
  }

  window.traceprofTime = { duration, seconds, grouped, ticks, clamped };
})();
