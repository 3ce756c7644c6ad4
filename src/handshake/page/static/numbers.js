// Numbers as text.

const short = (x) => (Math.abs(x) < 99.5 ? x.toFixed(1) : String(Math.round(x)));

export function count(n) {
  if (n === null || n === undefined || Number.isNaN(n)) return "–";
  const size = Math.abs(n);
  if (size < 10 && !Number.isInteger(n)) return n.toFixed(1);
  if (size < 10000) return Math.round(n).toLocaleString("en-US");
  for (const [unit, scale] of [["k", 1e3], ["M", 1e6], ["G", 1e9], ["T", 1e12]]) {
    const shown = n / scale;
    if (Math.abs(shown) < 999.5) return `${short(shown)} ${unit}`;
  }
  return n.toExponential(2);
}

export function bytes(n) {
  if (n === null || n === undefined) return "–";
  if (n < 1000) return `${Math.round(n)} B`;
  for (const [unit, scale] of [["kB", 1e3], ["MB", 1e6], ["GB", 1e9], ["TB", 1e12]]) {
    const shown = n / scale;
    if (shown < 999.5 || unit === "TB") return `${short(shown)} ${unit}`;
  }
}

export function seconds(s) {
  if (s === null || s === undefined) return "–";
  const size = Math.abs(s);
  if (size < 1e-3) return `${(s * 1e6).toFixed(0)} µs`;
  if (size < 1) return `${(s * 1e3).toFixed(size < 0.01 ? 1 : 0)} ms`;
  if (size < 120) return `${s.toFixed(1)} s`;
  if (size < 7200) return `${(s / 60).toFixed(1)} min`;
  return size < 172800 ? `${(s / 3600).toFixed(1)} h` : `${(s / 86400).toFixed(1)} d`;
}

export function ratio(x) {
  return x === null || x === undefined ? "–" : x.toFixed(2);
}

export function clock(t, withSeconds = true) {
  return new Date(t * 1000).toLocaleTimeString([], {
    hour: "2-digit",
    minute: "2-digit",
    hour12: false,
    ...(withSeconds ? { second: "2-digit" } : {}),
  });
}

export function percent(part, whole) {
  if (!part || !whole) return "0 %";
  return `${((100 * part) / whole).toFixed(part < 0.01 * whole ? 2 : 1)} %`;
}
