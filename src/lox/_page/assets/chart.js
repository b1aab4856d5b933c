// One chart: a card with the curves of one key.

const HEIGHT = 210, WIDE_HEIGHT = 420;
const BAND_NAMES = {
  ci: "95 % CI", std: "±1 std", sem: "±1 sem", minmax: "min–max", iqr: "IQR", none: "no band",
};

class Chart {
  constructor(page, key) {
    this.page = page;
    this.key = key;
    this.data = null;
    this.overview = null; // the whole x-axis, while `data` is a detail
    this.visible = false;
    this.stale = true;
    this.changed = new Set(); // runs with rows that are not in `data` yet
    this.wide = false;
    const button = (label, title, action) =>
      el("button", { class: "quiet", type: "button", title, onclick: action }, label);
    this.note = el("span", { class: "note" });
    this.plot = el("div", { class: "plot", tabindex: "0", role: "img" });
    this.plot.setAttribute("aria-label", `Chart of ${key.name}`);
    this.plot.addEventListener("keydown", (event) => this.keydown(event));
    this.element = el("section", { class: "card" },
      el("header", {},
        el("h3", { title: key.name }, key.name), this.note,
        el("span", { class: "tools" },
          button("CSV", `Values of ${key.name} as CSV`, () => this.save("csv")),
          button("SVG", `${key.name} as SVG`, () => this.save("svg")),
          button("PNG", `${key.name} as PNG`, () => this.save("png")),
          button("⤢", "Enlarge", () => this.toggleWide()))),
      this.plot);
    this.element.chart = this;
  }

  // --- data ---

  request() {
    const { state, source } = this.page;
    const range = state.range && this.axis === state.range[0] ? state.range.slice(1) : null;
    return {
      key: this.key.name, x: state.x, by: state.by, band: state.band, range,
      runs: source.live ? this.page.mask() : null,
      buckets: Math.round(Math.max(this.plot.clientWidth, 300)),
    };
  }

  invalidate() {
    this.stale = true;
    this.overview = null;
    if (this.visible) this.load();
  }

  async load() {
    const turn = (this.turn = (this.turn || 0) + 1);
    this.stale = false;
    this.changed.clear();
    const request = this.request();
    try {
      const data = await this.page.source.chart(request);
      if (turn !== this.turn) return;
      this.error = data ? "" : "This key is not in the file.";
      if (data) this.accept(data, request);
    } catch (error) {
      if (turn !== this.turn) return;
      this.error = `This chart could not be loaded: ${error.message}`;
    }
    this.draw();
  }

  accept(data, request) {
    this.axis = data.axes.length === 1 ? data.axes[0] : data.axes.join(", ");
    this.data = prepare(data, request.by, this.page);
    if (!request.range || !this.page.source.live) this.overview = this.data;
    this.loaded = JSON.stringify({ ...request, buckets: 0 });
  }

  // Fetches what these runs have logged since the last time, and appends it.
  async extend() {
    const request = this.request(), data = this.data;
    const same = data && this.loaded === JSON.stringify({ ...request, buckets: 0 });
    if (same && request.range && this.overview) {
      const change = this.overview.from[firstChange(this.overview, this.changed)];
      const known = this.overview.curves.map((lane) => lane.run);
      if (change > request.range[1] && [...this.changed].every((run) => known.includes(run))) return;
    }
    const whole = request.range || data?.binned || request.by === "@run" || isTime(request.x);
    const start = same && !whole ? firstChange(data, this.changed) : 0;
    if (start < 1 || data.from.length > 2.5 * request.buckets) return this.load();
    const turn = (this.turn = (this.turn || 0) + 1);
    this.stale = false;
    try {
      const news = await this.page.source.chart({ ...request, after: data.from[start], width: data.width });
      if (turn !== this.turn) return;
      const joined = news.refetch ? null : append(data, prepare(news, request.by, this.page), start);
      if (!joined) return this.load();
      this.changed.clear();
      this.data = this.overview = joined;
      this.draw();
    } catch {
      if (turn === this.turn) this.stale = true; // the next refresh tries again
    }
  }

  // --- scales ---

  xLimits() {
    const { state } = this.page;
    const data = this.overview || this.data;
    let [low, high] = (data && data.extent[0] != null) ? data.extent : [0, 1];
    if (state.logx) {
      low = low > 0 ? low : (data?.from.find((v) => v > 0) ?? 1);
      high = high > low ? high : low * 10;
    }
    if (state.range && this.axis === state.range[0]) {
      [, low, high] = state.range;
      if (state.logx && low <= 0) low = high / 1e4;
    }
    if (!(high > low)) [low, high] = [low - 0.5, high + 0.5];
    return [low, high];
  }

  yLimits() {
    const { state } = this.page;
    const [low, high] = this.xLimits();
    const found = this.data && limits(this.data, {
      band: state.band, seeds: state.seeds, hidden: this.page.hidden, low, high, log: state.logy,
    });
    if (!found) return state.logy ? [0.1, 10] : [0, 1];
    let [min, max] = found;
    if (state.logy) {
      const margin = Math.max((max / min) ** 0.04, 1.02);
      return [min / margin, max * margin];
    }
    const margin = (max - min) * 0.05 || Math.abs(max) * 0.05 || 0.5;
    return [min - margin, max + margin];
  }

  // --- drawing ---

  draw() {
    const { state } = this.page;
    const width = this.plot.clientWidth;
    if (!width) return;
    this.describe();
    const time = isTime(this.axis) ? this.axis : "";
    const kind = `${state.logx}${state.logy}${this.page.dark}${time}`;
    const height = this.wide ? WIDE_HEIGHT : HEIGHT;
    if (!this.u || this.kind !== kind) {
      this.u?.destroy();
      this.kind = kind;
      this.u = new uPlot(this.options(width, height), this.frame(), this.plot);
    } else {
      if (this.u.width !== width || this.u.height !== height) this.u.setSize({ width, height });
      this.u.setData(this.frame());
    }
  }

  frame() {
    return [this.xLimits(), this.yLimits()];
  }

  options(width, height) {
    const { state, page } = { state: this.page.state, page: this.page };
    const style = page.style();
    // of a logarithmic axis, only powers of ten have a line
    const decades = (u, splits) => splits.map((v) => (v > 0 && Number.isInteger(Math.log10(v)) ? v : null));
    const axis = (log) => ({
      stroke: style.muted, font: style.font, gap: 4, ticks: { show: false },
      grid: { stroke: style.grid, width: 1, ...(log ? { filter: decades } : {}) },
    });
    const text = (format) => (u, splits) => splits.map((v) => (v == null ? "" : format(v)));
    const across = {
      "#time": { size: 26, incrs: TIME_STEPS, values: (u, splits) => durationTicks(splits, state.logx) },
      "#clock": { size: 38, values: (u, splits, i, space, step) => clockTicks(splits, step) },
    }[this.axis] || { size: 26, values: text(short) };
    return {
      width, height, padding: [8, 10, 0, 0], legend: { show: false },
      scales: {
        x: { time: this.axis === "#clock", distr: state.logx ? 3 : 1, range: () => this.xLimits() },
        y: { distr: state.logy ? 3 : 1, range: () => this.yLimits() },
      },
      axes: [
        { ...axis(state.logx), space: 64, ...across },
        {
          ...axis(state.logy), space: 34, values: text(short),
          size: (u, values) => 14 + 6.4 * Math.max(3, ...(values || []).map((v) => v.length)),
        },
      ],
      series: [{}, { paths: () => null, points: { show: false } }],
      cursor: {
        y: false, points: { show: false },
        drag: { x: true, y: false, setScale: false, dist: 4 },
        sync: { key: page.sync.key, setSeries: false, scales: ["x", null] },
        bind: {
          dblclick: () => () => { page.zoom(null); return null; },
          mousedown: (u, target, handler) => (event) =>
            event.shiftKey ? this.pan(event) : handler(event),
        },
      },
      hooks: {
        draw: [(u) => this.paint(u)],
        ready: [(u) => this.listen(u)],
        setCursor: [(u) => this.hover(u)],
        setSelect: [(u) => {
          if (u.select.width < 4) return;
          const low = u.posToVal(u.select.left, "x");
          const high = u.posToVal(u.select.left + u.select.width, "x");
          u.setSelect({ left: 0, width: 0, top: 0, height: 0 }, false);
          page.zoom([this.axis, low, high]);
        }],
      },
    };
  }

  shapes(box) {
    const { state, page } = { state: this.page.state, page: this.page };
    const [low, high] = this.xLimits(), [min, max] = this.yLimits();
    const map = mapping(box, { min: low, max: high, log: state.logx }, { min, max, log: state.logy });
    return shapes(this.data, map, {
      band: state.band, smooth: state.smooth, seeds: state.seeds, hidden: page.hidden,
      colors: (label) => page.color(label), bad: page.style().bad, halo: page.style().card,
    });
  }

  paint(u) {
    if (!this.data) return;
    const { ctx, bbox } = u;
    ctx.save();
    ctx.beginPath();
    ctx.rect(bbox.left, bbox.top, bbox.width, bbox.height);
    ctx.clip();
    paint(ctx, this.shapes(bbox), devicePixelRatio);
    ctx.restore();
  }

  // The text of the card next to its title.
  describe() {
    const { state } = this.page;
    const data = this.data;
    this.element.classList.toggle("failed", Boolean(this.error));
    if (this.error || !data) {
      this.note.textContent = this.error || "";
      return;
    }
    const shown = data.groups.filter((g) => !this.page.hidden.has(g.label));
    const parts = [];
    // how many lanes a point has: fewer, where some have ended or are not finite
    let least = Infinity, most = 0;
    for (const { n, n2, partial } of shown)
      for (let i = 0; i < (partial ? 0 : n.length); i++)
        if (n2[i]) [least, most] = [Math.min(least, n[i] || n2[i]), Math.max(most, n2[i])];
    if (most > 1) {
      const n = least === most ? `n = ${most}` : `n = ${least}–${most}`;
      parts.push(`mean${state.band === "none" ? "" : `, ${BAND_NAMES[state.band]}`}, ${n}`);
    }
    if (shown.some((g) => g.partial)) parts.push("single runs: a file has no statistics of some runs of a group");
    if (data.binned) parts.push("runs averaged in bins");
    if (data.omitted) {
      const total = data.curves.length + data.omitted;
      parts.push(data.curves.length ? `${data.curves.length} of ${total} single runs` : "no single runs");
    }
    const bad = shown.reduce((sum, g) => sum + g.bad.reduce((a, b) => a + b, 0), 0);
    if (bad) {
      const none = shown.every((g) => g.first.every((v) => !Number.isFinite(v)));
      parts.push(none ? "no finite values" : `${bad.toLocaleString("en-US")} not finite`);
    }
    if (!shown.length) parts.push(data.groups.length ? "all hidden" : "no rows");
    parts.push(...data.problems.slice(0, 1));
    const axis = axisName(this.axis || "");
    if (axis && axisName(this.page.axis()) !== axis) parts.push(`over ${axis}`);
    this.note.textContent = parts.join(" · ");
    this.note.title = [...parts, ...data.problems.slice(1)].join("\n");
  }

  // --- pointer and keyboard ---

  listen(u) {
    u.over.addEventListener("mouseenter", () => { this.hovered = true; });
    u.over.addEventListener("mouseleave", () => {
      this.hovered = false;
      this.page.tooltip.hidden = true;
    });
    u.over.addEventListener("wheel", (event) => {
      if (!event.ctrlKey && !event.metaKey) return;
      event.preventDefault();
      this.zoomBy(event.deltaY < 0 ? 0.7 : 1 / 0.7, event.offsetX / u.over.clientWidth);
    }, { passive: false });
  }

  pan(event) {
    const start = event.clientX, [low, high] = this.xLimits();
    const width = this.u.over.clientWidth;
    const move = (e) => this.panBy((start - e.clientX) / width, [low, high]);
    const end = () => {
      removeEventListener("mousemove", move);
      removeEventListener("mouseup", end);
    };
    addEventListener("mousemove", move);
    addEventListener("mouseup", end);
    return null;
  }

  span(change, limits) {
    const log = this.page.state.logx;
    const f = log ? Math.log10 : (v) => v, back = log ? (v) => 10 ** v : (v) => v;
    const [low, high] = (limits || this.xLimits()).map(f);
    this.page.zoom([this.axis, ...change(low, high).map(back)]);
  }

  panBy(share, limits) {
    this.span((low, high) => [low + share * (high - low), high + share * (high - low)], limits);
  }

  zoomBy(factor, at = 0.5) {
    this.span((low, high) => {
      const center = low + at * (high - low);
      return [center + (low - center) * factor, center + (high - center) * factor];
    });
  }

  keydown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const actions = {
      ArrowLeft: () => this.panBy(-0.2), ArrowRight: () => this.panBy(0.2),
      "+": () => this.zoomBy(0.5), "=": () => this.zoomBy(0.5), "-": () => this.zoomBy(2),
      0: () => this.page.zoom(null), Enter: () => this.toggleWide(),
    };
    if (!actions[event.key]) return;
    event.preventDefault();
    actions[event.key]();
  }

  toggleWide() {
    this.wide = !this.wide;
    this.element.classList.toggle("wide", this.wide);
    if (this.page.source.live) this.load();
    this.draw();
  }

  hover(u) {
    const { tooltip, state, hidden } = this.page;
    const data = this.data;
    if (!this.hovered || !data || u.cursor.left < 0 || !data.from.length) return;
    const x = u.posToVal(u.cursor.left, "x");
    const i = nearest(data, x);
    const rows = [];
    for (const group of data.groups) {
      if (hidden.has(group.label) || group.partial) continue;
      const values = [group.first[i], group.second?.[i] ?? group.first[i]].sort((a, b) => a - b);
      if (Number.isNaN(values[0]) && !group.bad[i]) continue;
      const limits = group.bands?.[state.band];
      rows.push({ group, values, low: limits?.[0][i], high: limits?.[1][i], n: [group.n[i], group.n2[i]] });
    }
    rows.sort((a, b) => b.values[1] - a.values[1]);
    const [start, end] = [data.from[i], data.to[i]].map((v) => positionText(this.axis, v));
    const sameDay = this.axis === "#clock" && start.slice(0, 11) === end.slice(0, 11);
    const position = start === end ? start : `${start} – ${sameDay ? end.slice(11) : end}`;
    const table = el("table", {}, rows.slice(0, 12).map(({ group, values, low, high, n }) => {
      const many = group.count > 1;
      const value = !Number.isFinite(values[0]) ? "not finite"
        : values[0] === values[1] ? number(values[0]) : `${number(values[0])} … ${number(values[1])}`;
      const bad = group.bad[i] ? ` · ${group.bad[i]} not finite` : "";
      return el("tr", {},
        el("td", {}, swatch(this.page.color(group.label))),
        el("td", { class: "label" }, group.title ?? group.label),
        el("td", { class: "number" }, value),
        el("td", { class: "number dim" }, Number.isFinite(low) ? `[${number(low)}, ${number(high)}]` : ""),
        el("td", { class: "number dim" }, (many ? (n[0] === n[1] ? `n ${n[0]}` : `n ${n[0]}–${n[1]}`) : "") + bad));
    }));
    const more = rows.length > 12 ? el("p", { class: "dim" }, `and ${rows.length - 12} more`) : null;
    const near = this.nearestLane(u, i);
    tooltip.replaceChildren(
      el("p", { class: "at" }, `${axisName(this.axis)} ${position}`), table, ...(more ? [more] : []),
      ...(near ? [el("p", { class: "dim" }, near)] : []));
    tooltip.hidden = false;
    place(tooltip, u.over.getBoundingClientRect(), u.cursor.left, u.cursor.top);
  }

  // The single run below the pointer.
  nearestLane(u, i) {
    const data = this.data;
    let best = 9, found = "";
    for (const group of data.groups) {
      if (this.page.hidden.has(group.label) || !(this.page.state.seeds || group.partial)) continue;
      if (group.count < 2 && !group.partial) continue;
      for (const index of group.lanes) {
        const lane = data.curves[index];
        for (const v of [lane.first[i], lane.second?.[i]]) {
          if (!Number.isFinite(v)) continue;
          const distance = Math.abs(u.valToPos(v, "y") - u.cursor.top);
          if (distance < best) {
            best = distance;
            found = `${this.page.laneName(lane)}: ${number(v)}`;
          }
        }
      }
    }
    return found;
  }

  save(kind) {
    if (this.data) saveChart(this, kind);
  }

  destroy() {
    this.u?.destroy();
  }
}

// --- the data of a chart ---

function prepare(data, by, page) {
  const lanes = data.lanes;
  data.curves = lanes.runs.map((run, i) => ({
    run, name: lanes.names[i], first: lanes.first[i],
    second: lanes.second ? lanes.second[i] : null,
  }));
  data.middle = data.from.map((v, i) => (v + data.to[i]) / 2);
  const selected = page.selected();
  if (by === "@run") {
    data.groups = data.curves.map((lane, i) => ({ lane, i })).filter(({ lane }) => selected.has(lane.run))
      .map(({ lane, i }) => single(data, lane, i, page));
    return data;
  }
  const groups = [];
  for (const group of data.groups) {
    const kept = group.lanes.filter((i) => selected.has(lanes.runs[i]));
    // a file may lack single runs of a group
    const members = group.members ?? group.lanes.map((i) => lanes.runs[i]);
    if (!members.some((run) => selected.has(run))) continue;
    const partial = !members.every((run) => selected.has(run));
    groups.push({ ...group, lanes: kept, partial, count: partial ? kept.length : group.count ?? kept.length });
  }
  return { ...data, groups };
}

// A group of one lane.
function single(data, lane, i, page) {
  const ones = new Uint8Array(data.from.length).fill(1);
  const average = lane.first.map((v, j) => (lane.second ? (v + lane.second[j]) / 2 : v));
  const bad = new Uint32Array(data.from.length);
  const [lanes, buckets, counts] = data.lanes.bad;
  for (let j = 0; j < lanes.length; j++) if (lanes[j] === i) bad[buckets[j]] = counts[j];
  return {
    label: page.runName(lane.run), title: page.laneName(lane), lanes: [i], count: 1, x: data.from, x2: data.to, first: lane.first,
    second: lane.second, average, n: ones, n2: ones, bad, bands: {},
  };
}

// The first bucket that new rows of these runs can change: the last one of the slowest.
function firstChange(data, changed) {
  let first = data.from.length - 1;
  for (const lane of data.curves) {
    if (!changed.has(lane.run)) continue;
    let last = lane.first.length - 1;
    while (last >= 0 && Number.isNaN(lane.first[last])) last--;
    first = Math.min(first, last);
  }
  // rows with the same step are fetched together
  while (first > 0 && data.from[first - 1] === data.from[first]) first--;
  return first;
}

// Replaces the last buckets of a chart with newer ones; null if they do not fit
// together.
function append(old, news, start) {
  const lanes = (data) => JSON.stringify([data.lanes.runs, data.lanes.names]);
  const labels = (data) => JSON.stringify(data.groups.map((g) => [g.label, g.lanes]));
  if (lanes(old) !== lanes(news) || labels(old) !== labels(news)) return null;
  if (news.from[0] !== old.from[start] || news.width !== old.width) return null;
  const join = (a, b, filler, other) => {
    if (!a && !b) return null;
    a ||= filler;
    b ||= other;
    const joined = new Float64Array(start + b.length);
    joined.set(a.subarray(0, start));
    joined.set(b, start);
    return joined;
  };
  const from = join(old.from, news.from), to = join(old.to, news.to);
  const curves = old.curves.map((lane, i) => {
    const next = news.curves[i];
    return { ...lane, first: join(lane.first, next.first),
      second: join(lane.second, next.second, lane.first, next.first) };
  });
  const groups = old.groups.map((group, i) => {
    const next = news.groups[i];
    const bands = {};
    for (const [name, [low, high]] of Object.entries(group.bands || {}))
      bands[name] = [join(low, next.bands[name][0]), join(high, next.bands[name][1])];
    return { ...group, bands,
      x: join(group.x, next.x, old.from, news.from), x2: join(group.x2, next.x2, old.to, news.to),
      first: join(group.first, next.first),
      second: join(group.second, next.second, group.first, next.first),
      average: join(group.average, next.average), n: join(group.n, next.n),
      n2: join(group.n2, next.n2), bad: join(group.bad, next.bad) };
  });
  const low = Math.min(old.extent[0], news.extent[0]), high = Math.max(old.extent[1], news.extent[1]);
  return { ...old, from, to, curves, groups, extent: [low, high], problems: news.problems,
    middle: from.map((v, i) => (v + to[i]) / 2) };
}

function nearest(data, x) {
  const { from, to } = data;
  let low = 0, high = from.length - 1;
  while (low < high) {
    const middle = (low + high + 1) >> 1;
    if (from[middle] <= x) low = middle;
    else high = middle - 1;
  }
  const next = low + 1;
  return next < from.length && from[next] - x < x - to[low] ? next : low;
}
