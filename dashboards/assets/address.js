// Addresses of views, as dashboards/address.py reads them: where a choice, a click and a zoom lead.
// Functions here change nothing; null says that the view stays as it is.

const text = (url) => url.pathname + url.search.replaceAll("%2C", ",");

// Set or remove a parameter: null and undefined remove it.
function put(url, name, value) {
  if (value === null || value === undefined) url.searchParams.delete(name);
  else url.searchParams.set(name, value);
}

// The address of the same page for other reports and ranks; none chosen is all.
export function withChoice(here, reports, ranks) {
  const url = new URL(here);
  const changed = Object.entries({ report: reports, rank: ranks })
    .map(([name, numbers]) => [name, (numbers ?? []).join(",")])
    .filter(([name, numbers]) => numbers !== (url.searchParams.get(name) ?? ""));
  if (!changed.length) return null;
  for (const [name, numbers] of changed) put(url, name, numbers || null);
  // Evidence is of one rank.
  put(url, "finding", null);
  put(url, "evidence", null);
  return text(url);
}

// The address that the point under a click stands for: by the row of a heat map, or by the row in
// the `meta` of a trace, and by the point's index.
export function ofPoint(point, figure, places) {
  if (!point || !places?.length) return null;
  const [row, index] = Array.isArray(point.pointNumber)
    ? point.pointNumber
    : [figure.data[point.curveNumber].meta, point.pointNumber];
  return places[row]?.[index] ?? null;
}

// The address of the time that a chart was zoomed to. `base`: the nanosecond at which its axis,
// in seconds, begins, as text; `changed`: plotly's relayoutData.
export function withZoom(here, base, changed) {
  if (base === undefined || !changed) return null;
  const url = new URL(here);
  const axis = Object.keys(changed).find((key) => /^xaxis\d*\.range\[0\]$/.test(key));
  if (axis) {
    const limits = [changed[axis], changed[axis.replace("[0]", "[1]")]];
    const [start, end] = limits.map((limit) => BigInt(base) + BigInt(Math.round(limit * 1e9)));
    if (end <= start) return null;
    put(url, "start", start);
    put(url, "end", end);
  } else if (Object.keys(changed).some((key) => /^xaxis\d*\.autorange$/.test(key))) {
    put(url, "start", null);
    put(url, "end", null);
  } else return null;
  return text(url);
}

// The address of the timeline as it stands; `shown`: values by parameter, null for none.
export function withTimeline(here, shown) {
  const url = new URL(here);
  for (const [name, value] of Object.entries(shown)) put(url, name, value);
  return text(url);
}
