// What the page knows of one query: its last figures, its history and what does not change.

const RECENT = { local: 2.5, spark: 20 }; // seconds over which the rates of this moment are taken
const HOUR = 3600, WAITING = 60; // the most points of a history, and of news before it has been fetched

export const total = (results) => Object.values(results).reduce((sum, n) => sum + n, 0);
export const late = (query) => (query.figures.late_rows ?? 0) + total(query.streams.map((s) => s.late ?? 0));
export const shed = (query) => total(query.streams.map((s) => s.shed ?? 0));
export const allRows = (moment) => total(moment.rows);

export class Known {
  constructor() {
    this.query = {};
    this.forget();
  }

  // Another run has taken the name: everything is fetched again.
  forget() {
    this.moments = [];
    this.points = [];
    this.history = this.about = null;
    this.loading = false;
  }

  // Take over the news of a frame; figures come when they are new.
  take(t, news) {
    const query = { ...this.query, ...news };
    if (this.query.since !== undefined && this.query.since !== query.since) this.forget();
    if (news.rows) query.streams = query.streams.map((stream, k) => ({ ...stream, rows: news.rows[k] }));
    this.query = query;
    this.moments.push({ t, rows: query.streams.map((s) => s.rows ?? 0), results: total(query.results) });
    const span = RECENT[query.engine] ?? RECENT.local;
    while (this.moments.length > 2 && this.moments[1].t < t - span) this.moments.shift();
    this.points.push(...(news.points ?? []));
    this.points.splice(0, this.history ? 0 : this.points.length - WAITING);
    this.append();
  }

  async load(name) {
    if (this.loading) return false;
    this.loading = true;
    try {
      const answer = await fetch(`query?name=${encodeURIComponent(name)}`);
      if (!answer.ok) return false;
      const { history, about } = await answer.json();
      this.history = history;
      if (JSON.stringify(this.about) !== JSON.stringify(about)) this.about = about;
      this.append();
      return true;
    } catch {
      return false; // the events say that the connection is lost
    } finally {
      this.loading = false;
    }
  }

  // Add the points that came with frames to the history.
  append() {
    if (!this.history) return;
    for (const point of this.points.splice(0)) {
      const length = this.history.t.length;
      if (length && point.t <= this.history.t.at(-1)) continue;
      for (const name of Object.keys(point)) this.history[name] ??= Array(length).fill(null);
      for (const [name, column] of Object.entries(this.history)) {
        column.push(point[name] ?? null);
        if (column.length > HOUR) column.shift();
      }
    }
  }

  // The rate of this moment of a count.
  rate(pick) {
    const first = this.moments[0], last = this.moments.at(-1);
    if (!first || last.t - first.t < 0.05) return null;
    return Math.max(pick(last) - pick(first), 0) / (last.t - first.t);
  }
}
