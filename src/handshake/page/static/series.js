// Series: points of a history, at most one per two pixels.

export function rates(times, counts, from, to, width, least = 0) {
  return sample(times, from, to, width, least, (a, b) => {
    if (counts[a] === null || counts[b] === null || counts[a] === undefined) return null;
    const change = counts[b] - counts[a];
    return (change < 0 ? counts[b] : change) / Math.max(times[b] - times[a], 1e-3); // a fall is a restart
  });
}

export function values(times, held, from, to, width) {
  return sample(times, from, to, width, 0, (a, b) => {
    let best = null;
    for (let k = a + 1; k <= b; k++) best = larger(best, held[k] ?? null);
    return best;
  });
}

// `least` seconds between two points: micro-batches count many rows at once.
function sample(times, from, to, width, least, value) {
  const step = Math.max((to - from) / Math.max(width / 2, 20), least), points = [];
  let last = times.findIndex((t) => t >= from - step);
  if (last < 0) return points;
  for (let k = last + 1; k < times.length; k++) {
    const apart = times[k] - times[k - 1] > Math.max(5, 3 * step); // nothing was seen in between
    if (apart) {
      points.push([times[k - 1], null]);
      last = k;
    } else if (times[k] - times[last] >= step || k === times.length - 1) {
      points.push([times[k], value(last, k)]);
      last = k;
    }
  }
  return points;
}

function larger(a, b) {
  return a === null || (b !== null && b > a) ? b : a;
}

export function sumSeries(series) {
  if (!series.length) return [];
  const sum = (k) => series.reduce((all, each) => all + (each[k]?.[1] ?? 0), 0);
  return series[0].map(([t, v], k) => [t, v === null ? null : sum(k)]);
}
