// Arithmetic of views: a view is {start, span}, an extent or an interval {start, end}, all in ns.
// Functions return new views and change nothing.

const MIN_SPAN = 10; // of a view
const MIN_EXTENT = 1000;
const MAX_SPAN = 1.2; // of the extent
const MIN_INSIDE = 0.2; // of a view, which the extent keeps
const FRAMED = 0.6; // of a view, which an interval fills
const FOUND = 0.04; // likewise, where one sees what is around
const MIN_PIXELS = 3; // of an event that can be seen

// The view with its span and its place inside the limits.
export function clamped({ start, span }, extent) {
  const whole = Math.max(extent.end - extent.start, MIN_EXTENT);
  const within = Math.min(Math.max(span, MIN_SPAN), whole * MAX_SPAN);
  const first = extent.start - within * (1 - MIN_INSIDE);
  const last = extent.end - within * MIN_INSIDE;
  return { start: Math.min(Math.max(start, first), last), span: within };
}

// The view `factor` times as wide, with the time `at` where it was.
export function zoomed({ start, span }, factor, at, extent) {
  const wide = clamped({ start, span: span * factor }, extent).span;
  return { start: at - ((at - start) / span) * wide, span: wide };
}

// The view moved by a share of itself.
export const panned = ({ start, span }, share) => ({ start: start + share * span, span });

// A view of which an interval fills a share, in its middle.
export function framed(start, end, share = FRAMED) {
  const span = Math.max(end - start, MIN_SPAN) / share;
  return { start: (start + end) / 2 - span / 2, span };
}

export const holds = (view, { start, end }) =>
  start >= view.start && end <= view.start + view.span;

// The view that brings an interval in sight, null where it is: moved, and zoomed only where the
// interval would be too narrow or too wide to be seen. `width`: of the view, in pixels.
export function bringingIn(view, interval, width) {
  const { start, end } = interval;
  const share = (end - start) / view.span;
  if (share > 1 || share < MIN_PIXELS / width) return framed(start, end, FOUND);
  if (holds(view, interval)) return null;
  return { start: (start + end) / 2 - view.span / 2, span: view.span };
}

// The extent of those that have one.
export function extentOf(ranks) {
  const known = ranks.filter((rank) => rank?.start !== undefined);
  if (!known.length) return { start: 0, end: 1e9 };
  return {
    start: Math.min(...known.map((rank) => rank.start)),
    end: Math.max(...known.map((rank) => rank.end)),
  };
}
