// The table of runs: config and last values; sorts, and selects the runs of the charts.

class RunTable {
  constructor(page) {
    this.page = page;
    this.all = false; // also the config keys in which the runs do not differ
    this.body = el("tbody");
    this.head = el("thead");
    this.count = el("span", { class: "note" });
    this.toggle = el("button", { class: "quiet", type: "button", onclick: () => {
      this.all = !this.all;
      this.render();
    } });
    this.element = el("div", {},
      el("p", { class: "bar" }, this.count, this.toggle),
      el("div", { class: "scroll", tabindex: "0" }, el("table", { class: "runs" }, this.head, this.body)));
  }

  columns() {
    const { index } = this.page.source;
    const differing = new Set(index.differing), found = [
      { id: "name", title: "run", text: (run) => run.name },
      { id: "status", title: "status", text: (run) => run.status },
      { id: "started", title: "started", value: (run) => run.started, text: (run) => date(run.started) },
      { id: "rows", title: "rows", number: true, value: (run) => run.rows, text: (run) => number(run.rows) },
    ];
    const keys = index.config.filter((key) => this.all || differing.has(key));
    for (const key of keys) {
      const text = (run) => run.config[key] ?? "–";
      const value = (run) => (run.config[key] == null ? null : sortable(run.config[key]));
      const numeric = index.runs.every((run) => typeof value(run) !== "string");
      found.push({ id: `config:${key}`, title: key, group: "config", text, value, number: numeric });
    }
    for (const key of index.keys.filter((k) => k.kind === "scalar"))
      found.push({ id: `last:${key.name}`, title: key.name, group: "last value", number: true,
        value: (run) => run.last[key.name], text: (run) => number(run.last[key.name]) });
    return found;
  }

  render() {
    const { page } = this;
    const { index } = page.source;
    const columns = this.columns();
    const descending = page.state.sort.startsWith("-");
    const column = columns.find(({ id }) => id === page.state.sort.replace(/^-/, ""));
    const shown = index.runs.filter((run) => page.matches(run));
    if (column) {
      const value = column.value || column.text;
      const sign = descending ? -1 : 1;
      shown.sort((a, b) => compare(value(a), value(b), sign));
    }
    const off = new Set(page.state.off);
    const checked = shown.filter((run) => !off.has(run.name)).length;
    const every = el("input", { type: "checkbox", "aria-label": "Show all runs", onchange: () => {
      const names = shown.map((run) => run.name);
      const rest = page.state.off.filter((name) => !names.includes(name));
      page.state.set({ off: checked ? [...rest, ...names] : rest });
    } });
    every.checked = checked === shown.length && checked > 0;
    every.indeterminate = checked > 0 && checked < shown.length;
    const hidden = index.config.length - index.differing.length;
    this.toggle.textContent = this.all ? "Only config that differs" : `All config (${hidden} more)`;
    this.toggle.hidden = !hidden;
    this.count.textContent = `${checked} of ${index.runs.length} runs shown in charts`;
    this.head.replaceChildren(el("tr", {}, el("th", {}, every), columns.map((c) => {
      const active = c === column;
      const mark = active ? (descending ? " ↓" : " ↑") : "";
      return el("th", { class: [c.number ? "number" : "", c.group ? c.group.replace(" ", "-") : ""].join(" "),
        scope: "col", "aria-sort": active ? (descending ? "descending" : "ascending") : null },
        el("button", { type: "button", title: c.group ? `${c.group}: ${c.title}` : c.title, onclick: () =>
          page.state.set({ sort: active && !descending ? `-${c.id}` : c.id }) }, c.title + mark));
    })));
    this.body.replaceChildren(...shown.map((run) => {
      const box = el("input", { type: "checkbox", "aria-label": `Show ${run.name}`, onchange: () =>
        page.state.set({ off: off.has(run.name) ? page.state.off.filter((n) => n !== run.name)
          : [...page.state.off, run.name] }) });
      box.checked = !off.has(run.name);
      return el("tr", { class: off.has(run.name) ? "off" : "" }, el("td", {}, box),
        columns.map((c) => el("td", { class: c.number ? "number" : "", title: c.text(run) },
          c.id === "name" ? swatch(page.color(page.groupOf(run))) : null,
          c.id === "status" ? el("span", { class: `status ${["running", "finished", "failed", "killed"]
            .includes(run.status) ? run.status : ""}` }, run.status) : c.text(run))));
    }));
  }
}

function date(seconds) {
  const d = new Date(seconds * 1000), two = (n) => String(n).padStart(2, "0");
  if (Number.isNaN(d.getTime())) return "–";
  return `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())} ${two(d.getHours())}:${two(d.getMinutes())}`;
}

function sortable(text) {
  const value = Number(text);
  return text.trim() !== "" && !Number.isNaN(value) ? value : text;
}

// Missing values come last, numbers before texts.
function compare(a, b, sign) {
  if (a == null || b == null) return (a == null) - (b == null);
  if (typeof a === typeof b) return sign * (a < b ? -1 : a > b ? 1 : 0);
  return sign * (typeof a === "number" ? -1 : 1);
}
