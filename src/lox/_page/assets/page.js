// The page: controls, legend and views; refreshes itself while `lox serve` runs.

const PALETTES = {
  light: ["#0072b2", "#d55e00", "#009e73", "#b5528f", "#b98200", "#3b9fd8", "#6b5b4b", "#8a8200"],
  dark: ["#56a9e8", "#ff8b50", "#2fc79a", "#e59ac6", "#f0b541", "#9ad4ff", "#c8b7a5", "#d8ce5e"],
};
const DASHES = [[], [7, 4], [2, 4]];
const VIEWS = { charts: "Charts", runs: "Runs", histograms: "Histograms", images: "Images" };
const KEYS = [
  ["/", "find keys"], ["r", "find runs"], ["1 – 4", "change the view"], ["g", "group by"], ["b", "next band"],
  ["s", "single runs"], ["x, y", "logarithmic axes"], ["t", "light or dark"], ["0", "whole x-axis"],
  ["← → + −", "move and zoom the focused chart"], ["Enter", "enlarge the focused chart"],
  ["drag", "zoom all charts"], ["Shift + drag", "move"], ["Ctrl + wheel", "zoom"], ["double click", "whole x-axis"],
];

class Page {
  constructor(root, source, { useHash }) {
    this.root = root;
    this.source = source;
    this.refresh = source.index.refresh ?? 2; // seconds
    this.state = new State(useHash);
    this.sync = uPlot.sync(`lox-${Math.random()}`);
    this.charts = new Map();
    this.scheme = matchMedia("(prefers-color-scheme: dark)");
    this.observer = new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) {
        target.chart.visible = isIntersecting;
        if (isIntersecting) this.wake(target.chart);
      }
    }, { rootMargin: "250px" });
    this.build();
    this.update();
    this.state.listeners.push((changed) => this.changed(changed));
    this.scheme.addEventListener("change", () => this.update());
    new ResizeObserver(() => this.resize()).observe(this.grid);
    root.addEventListener("keydown", (event) => this.keydown(event));
    if (source.live) this.follow();
  }

  // --- structure ---

  build() {
    const { state } = this;
    const option = (value, text) => el("option", { value }, text);
    const select = (name, title) => el("select", { "aria-label": title, title, onchange: (e) => this.choose(name, e.target.value) });
    this.by = select("by", "Group by");
    this.x = select("x", "X-axis");
    this.band = select("band", "Band");
    this.band.append(...Object.entries(BAND_NAMES).map(([value, text]) => option(value, text)));
    this.smooth = el("input", { type: "range", min: "0", max: "0.99", step: "0.01", "aria-label": "Smoothing",
      oninput: (e) => state.set({ smooth: Number(e.target.value) }) });
    this.smoothText = el("output", { class: "number" });
    const toggle = (name, text, title) => {
      const button = el("button", { type: "button", class: "toggle", title, onclick: () => state.set({ [name]: !state[name] }) }, text);
      button.name = name;
      return button;
    };
    this.toggles = [
      toggle("seeds", "Single runs", "Show the runs of each group behind their mean"),
      toggle("logx", "Log x", "Logarithmic x-axis"), toggle("logy", "Log y", "Logarithmic y-axis"),
    ];
    this.reset = el("button", { type: "button", class: "toggle", onclick: () => this.zoom(null) }, "Whole x-axis");
    const search = (name, text) => el("input", { type: "search", placeholder: text, "aria-label": text, spellcheck: "false",
      oninput: (e) => state.set({ [name]: e.target.value }) });
    this.keyFilter = search("keys", "Find keys");
    this.runFilter = search("runs", "Find runs");
    this.tabs = el("nav", { "aria-label": "Views" });
    this.legend = el("ul", { class: "legend" });
    this.legendTitle = el("h2", {}, "Groups");
    this.title = el("h1");
    this.summary = el("span", { class: "note" });
    this.status = el("span", { class: "live", hidden: true });
    this.problems = el("details", { class: "problems", hidden: true });
    this.notes = el("p", { class: "notes", hidden: true });
    this.grid = el("div", { class: "grid" });
    this.empty = el("p", { class: "empty", hidden: true });
    this.table = new RunTable(this);
    this.tooltip = el("div", { class: "tooltip", hidden: true, "aria-hidden": "true" });
    this.help = el("dialog", { class: "help" }, el("h2", {}, "Keyboard and mouse"),
      el("dl", {}, KEYS.flatMap(([key, text]) => [el("dt", {}, key), el("dd", {}, text)])),
      el("form", { method: "dialog" }, el("button", { class: "toggle" }, "Close")));
    const field = (text, ...control) => el("label", { class: "field" }, el("span", {}, text), ...control);
    this.controls = el("div", { class: "controls" },
      field("Group by", this.by), field("X-axis", this.x), field("Band", this.band),
      field("Smoothing", el("span", { class: "range" }, this.smooth, this.smoothText)),
      el("div", { class: "toggles" }, this.toggles, this.reset));
    this.side = el("aside", {}, el("div", { class: "sidehead" }, this.legendTitle), this.runFilter, this.legend);
    this.main = el("main", {}, this.controls, this.empty, this.grid, this.table.element);
    this.app = el("div", { class: "lox" },
      el("header", { class: "top" }, this.title, this.summary, this.status, el("span", { class: "spring" }), this.tabs,
        this.keyFilter,
        el("button", { type: "button", class: "quiet", title: "Keyboard and mouse (?)", onclick: () => this.help.showModal() }, "?"),
        el("button", { type: "button", class: "quiet", title: "Light or dark (t)", onclick: () => this.toggleTheme() }, "◐")),
      this.problems, this.notes, el("div", { class: "columns" }, this.side, this.main), this.tooltip, this.help);
    this.root.replaceChildren(this.app);
  }

  // Draws everything again.
  update() {
    const { state, source: { index } } = this;
    this.cache = {};
    this.dark = state.theme ? state.theme === "dark" : this.scheme.matches;
    this.app.dataset.theme = this.dark ? "dark" : "light";
    this.hidden = new Set(state.hidden);
    if (this.root === document.body || this.root.parentElement === document.body) document.title = `${index.store} · lox`;
    this.title.textContent = index.store;
    const scalars = index.keys.filter((key) => key.kind === "scalar");
    const count = (n, word) => `${n.toLocaleString("en-US")} ${word}${n === 1 ? "" : "s"}`;
    this.summary.textContent = `${count(index.runs.length, "run")}, ${count(scalars.length, "key")}`;
    this.notes.hidden = !index.notes;
    this.notes.textContent = (index.notes || []).join(" ");
    this.problems.hidden = !index.problems.length;
    this.problems.replaceChildren(el("summary", {}, count(index.problems.length, "problem") + " with this store"),
      el("ul", {}, index.problems.map((text) => el("li", {}, text))));
    this.updateControls();
    this.updateLegend();
    this.updateCards();
    for (const chart of this.charts.values()) if (chart.visible && chart.data) chart.draw();
  }

  updateControls() {
    const { state, source: { index } } = this;
    const present = new Set(index.keys.map((key) => `${key.kind}s`.replace("scalars", "charts")));
    const views = Object.entries(VIEWS).filter(([id]) => id === "charts" || id === "runs" || present.has(id));
    if (!views.some(([id]) => id === state.view)) state.view = "charts";
    this.tabs.replaceChildren(...views.map(([id, text]) => el("button", { type: "button",
      "aria-current": id === state.view ? "page" : null, onclick: () => state.set({ view: id }) }, text)));
    options(this.by, index.groupings.map(({ id, title }) => [id, title]), state.by);
    options(this.x, this.axes().map((x) => [x, axisName(x)]), this.axis());
    this.band.value = state.band in BAND_NAMES ? state.band : "ci";
    this.smooth.value = state.smooth;
    this.smoothText.textContent = state.smooth ? state.smooth.toFixed(2) : "off";
    for (const button of this.toggles) button.setAttribute("aria-pressed", state[button.name]);
    this.reset.hidden = !state.range;
    if (this.keyFilter.value !== state.keys) this.keyFilter.value = state.keys;
    if (this.runFilter.value !== state.runs) this.runFilter.value = state.runs;
    const drawn = index.keys.some((key) => key.kind === "scalar");
    this.controls.hidden = state.view !== "charts" || !drawn;
    this.keyFilter.hidden = state.view === "runs" || !index.keys.length;
    this.side.hidden = !index.runs.length;
    // what only several runs need
    const alone = index.runs.length < 2;
    this.band.disabled = this.toggles[0].disabled = state.by === "@run";
    this.by.parentElement.hidden = this.band.parentElement.hidden = this.toggles[0].hidden = this.runFilter.hidden = alone;
    this.table.element.hidden = state.view !== "runs";
    this.grid.hidden = state.view === "runs";
  }

  updateLegend() {
    const { state } = this;
    const groups = this.groups(), selected = this.selected(), alone = this.source.index.runs.length === 1;
    this.legendTitle.textContent = alone ? "Run" : state.by === "@run" ? "Runs" : "Groups";
    const shown = groups.map((group) => ({ ...group, n: group.runs.filter((id) => selected.has(id)).length }))
      .filter(({ n }) => n);
    this.legend.replaceChildren(...shown.map(({ label, n }) => el("li", {}, el("button", {
      type: "button", title: `${label} – click to hide, double click to show only this`,
      "aria-pressed": !this.hidden.has(label),
      onclick: () => state.set({ hidden: this.hidden.has(label)
        ? state.hidden.filter((x) => x !== label) : [...state.hidden, label] }),
      ondblclick: () => state.set({ hidden: shown.map((g) => g.label).filter((x) => x !== label) }),
    }, swatch(this.color(label)), el("span", { class: "label" }, alone ? this.runName(groups[0].runs[0]) : label),
      el("span", { class: "number dim" }, alone || state.by === "@run" ? "" : `n ${n}`)))));
    if (!shown.length) this.legend.append(el("li", { class: "dim" }, this.source.index.runs.length ? "no run matches" : "no runs"));
    this.legend.append(...(state.hidden.length ? [el("li", {}, el("button", { type: "button", class: "dim",
      onclick: () => state.set({ hidden: [] }) }, "Show all"))] : []));
  }

  updateCards() {
    const { state, source: { index } } = this;
    const kind = { charts: "scalar", histograms: "histogram", images: "image" }[state.view];
    const keys = kind ? index.keys.filter((key) => key.kind === kind && includes(key.name, state.keys)) : [];
    const wanted = new Map(keys.map((key) => [`${key.kind}:${key.name}`, key]));
    for (const [id, chart] of this.charts) if (!wanted.has(id)) {
      this.observer.unobserve(chart.element);
      chart.destroy();
      chart.element.remove();
      this.charts.delete(id);
    }
    const sections = new Map();
    for (const [id, key] of wanted) {
      if (!this.charts.has(id)) {
        const chart = kind === "scalar" ? new Chart(this, key) : new MediaCard(this, key);
        this.charts.set(id, chart);
        this.observer.observe(chart.element);
      }
      const slash = key.name.indexOf("/");
      const prefix = slash > 0 ? key.name.slice(0, slash) : "";
      if (!sections.has(prefix)) sections.set(prefix, []);
      sections.get(prefix).push(this.charts.get(id).element);
    }
    const children = [];
    for (const [prefix, cards] of sections) {
      if (sections.size > 1 && prefix) children.push(el("h2", { class: "section" }, prefix));
      children.push(...cards);
    }
    const old = [...this.grid.children].filter((child) => child.className !== "section");
    const now = children.filter((child) => child.className !== "section");
    if (old.length !== now.length || old.some((child, i) => child !== now[i])) this.grid.replaceChildren(...children);
    const none = state.view !== "runs" && !keys.length;
    this.empty.hidden = !none;
    this.empty.textContent = !index.runs.length
      ? (this.source.live ? "No runs yet. They appear here as soon as they are written." : "This store has no runs.")
      : state.keys ? `No key contains “${state.keys}”.` : "These runs have not logged any scalars.";
    if (state.view === "runs") this.table.render();
  }

  // --- what the charts ask ---

  groups() {
    const { state, source: { index } } = this;
    if (state.by === "@run") {
      this.cache.groups ??= index.runs.map((run) => ({ label: run.name, runs: [run.id] }));
    } else {
      const found = index.groupings.find(({ id }) => id === state.by) || index.groupings[0];
      this.cache.groups ??= found.groups.map(([label, runs]) => ({ label, runs }));
    }
    return this.cache.groups;
  }

  groupOf(run) {
    if (!this.cache.groupOf) {
      this.cache.groupOf = new Map();
      for (const { label, runs } of this.groups()) for (const id of runs) this.cache.groupOf.set(id, label);
    }
    return this.cache.groupOf.get(run.id);
  }

  color(label) {
    this.cache.colors ??= new Map(this.groups().map((group, i) => [group.label, i]));
    const i = this.cache.colors.get(label) ?? 0;
    const palette = PALETTES[this.dark ? "dark" : "light"];
    return { line: palette[i % palette.length], dash: DASHES[Math.floor(i / palette.length) % DASHES.length] };
  }

  matches(run) {
    return includes(`${run.name} ${run.status} ${Object.entries(run.config).map(([k, v]) => `${k}=${v}`).join(" ")}`, this.state.runs);
  }

  selected() {
    const off = new Set(this.state.off);
    this.cache.selected ??= new Set(this.source.index.runs
      .filter((run) => !off.has(run.name) && this.matches(run)).map((run) => run.id));
    return this.cache.selected;
  }

  // The selected runs as hexadecimal digits with four runs each; empty if all are.
  mask() {
    const selected = this.selected(), { runs } = this.source.index;
    if (selected.size === runs.length) return "";
    const digits = new Array((Math.max(0, ...runs.map((run) => run.id)) >> 2) + 1).fill(0);
    for (const id of selected) digits[id >> 2] |= 1 << (id & 3);
    return digits.map((digit) => digit.toString(16)).join("");
  }

  runName(id) {
    this.cache.names ??= new Map(this.source.index.runs.map((run) => [run.id, run.name]));
    return this.cache.names.get(id) ?? "";
  }

  laneName({ run, name }) {
    return this.runName(run) + (name == null ? "" : ` · ${name}`);
  }

  axes() {
    const { index } = this.source;
    const found = new Set();
    for (const key of index.keys) if (key.kind === "scalar") for (const x of this.source.axes(key)) found.add(x);
    const rank = (x) => (x.startsWith("key:") ? 3 : x === "#row" ? 2 : isTime(x) ? 1 : 0);
    return [...found].sort((a, b) => rank(a) - rank(b));
  }

  axis() {
    return this.state.x || this.axes()[0] || "#row";
  }

  style() {
    if (!this.cache.style) {
      const style = getComputedStyle(this.app), get = (name) => style.getPropertyValue(name).trim();
      const family = style.fontFamily;
      this.cache.style = { text: get("--text"), muted: get("--muted"), grid: get("--grid"), card: get("--card"),
        bad: get("--bad"), family, font: `11px ${family}` };
    }
    return this.cache.style;
  }

  // --- changes ---

  choose(name, value) {
    if (name === "x") value = value === this.axes()[0] ? "" : value;
    const more = name === "by" ? { hidden: [] } : name === "x" ? { range: null } : {};
    this.state.set({ [name]: value, ...more });
  }

  changed(changed) {
    const reload = ["by", "x", "off", "runs"].some((name) => changed.has(name)) ||
      (changed.has("band") && this.source.live && this.state.band !== "none");
    this.update();
    const hasCharts = [...this.charts.values()];
    if (reload) for (const chart of hasCharts) chart.invalidate();
    else if (changed.has("range") && this.source.live) {
      clearTimeout(this.zooming);
      this.zooming = setTimeout(() => { for (const chart of hasCharts) if (chart.visible) chart.load(); else chart.stale = true; }, 120);
    }
  }

  zoom(range) {
    if (range && !(Number.isFinite(range[1]) && range[2] > range[1])) return;
    if (!range) for (const chart of this.charts.values()) if (chart.overview) chart.data = chart.overview;
    this.state.set({ range });
  }

  wake(chart) {
    if (chart.stale) (chart.data ? chart.extend() : chart.load());
    else chart.draw();
  }

  resize() {
    cancelAnimationFrame(this.resizing);
    this.resizing = requestAnimationFrame(() => {
      for (const chart of this.charts.values()) if (chart.visible && chart.data) chart.draw();
    });
  }

  toggleTheme() {
    this.state.set({ theme: this.dark ? "light" : "dark" });
  }

  keydown(event) {
    if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
    if (event.composedPath()[0].matches?.("input, select, textarea")) {
      if (event.key === "Escape") event.composedPath()[0].blur();
      return;
    }
    const { state } = this, views = [...this.tabs.children], bands = Object.keys(BAND_NAMES);
    const actions = {
      "/": () => this.keyFilter.focus(), r: () => this.runFilter.focus(), g: () => this.by.focus(),
      b: () => this.choose("band", bands[(bands.indexOf(state.band) + 1) % bands.length]),
      s: () => state.set({ seeds: !state.seeds }), x: () => state.set({ logx: !state.logx }),
      y: () => state.set({ logy: !state.logy }), t: () => this.toggleTheme(), 0: () => this.zoom(null),
      "?": () => this.help.showModal(),
    };
    const action = actions[event.key] || (event.key >= "1" && event.key <= "4" && (() => views[event.key - 1]?.click()));
    if (!action) return;
    event.preventDefault();
    action();
  }

  // --- live ---

  async follow() {
    const again = () => { this.timer = setTimeout(() => this.follow(), 1000 * this.refresh); };
    if (document.hidden) {
      addEventListener("visibilitychange", () => this.follow(), { once: true });
      return;
    }
    try {
      const changed = await this.source.refresh();
      this.status.hidden = false;
      this.status.textContent = "live";
      this.status.classList.remove("lost");
      if (changed) {
        this.update();
        const visible = [...this.charts.values()].filter((chart) => {
          chart.stale = true;
          for (const id of changed) chart.changed?.add(id);
          return chart.visible;
        });
        await Promise.all(visible.map((chart) => (chart.data ? chart.extend() : chart.load())));
      }
    } catch {
      this.status.hidden = false;
      this.status.textContent = "not connected";
      this.status.classList.add("lost");
    }
    again();
  }
}

function options(select, entries, value) {
  const text = JSON.stringify(entries);
  if (select.entries !== text) {
    select.entries = text;
    select.replaceChildren(...entries.map(([id, title]) => el("option", { value: id }, title)));
  }
  select.value = value;
  select.disabled = entries.length < 2;
}

function includes(text, words) {
  const lower = text.toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => lower.includes(word));
}
