// Histograms over time, and images.

class MediaCard {
  constructor(page, key) {
    this.page = page;
    this.key = key;
    this.stale = true;
    this.select = el("select", { "aria-label": `Run of ${key.name}`, onchange: () => this.show() });
    this.note = el("span", { class: "note" });
    this.slider = el("input", { type: "range", min: "0", value: "0", "aria-label": `Row of ${key.name}`,
      oninput: () => this.show() });
    this.picture = el("img", { alt: `Image of ${key.name}` });
    this.canvas = el("canvas");
    const image = key.kind === "image";
    this.element = el("section", { class: `card ${key.kind}` },
      el("header", {}, el("h3", { title: key.name }, key.name), this.note, this.select),
      image ? el("div", { class: "frame" }, this.picture) : this.canvas, image ? this.slider : null);
    this.element.chart = this;
    if (!image) this.canvas.addEventListener("mousemove", (event) => this.hover(event));
    if (!image) this.canvas.addEventListener("mouseleave", () => { page.tooltip.hidden = true; });
  }

  invalidate() {
    this.stale = true;
    if (this.visible) this.load();
  }

  extend() {
    return this.load();
  }

  async load() {
    this.stale = false;
    try {
      this.data = await this.page.source.media(this.key.name);
    } catch (error) {
      this.note.textContent = `It could not be loaded: ${error.message}`;
      return;
    }
    this.draw();
  }

  draw() {
    const selected = this.page.selected();
    this.runs = (this.data?.runs || []).filter((run) => selected.has(run.id));
    const before = this.select.value;
    this.select.replaceChildren(...this.runs.map((run) => el("option", { value: run.id }, this.page.runName(run.id))));
    if (this.runs.some((run) => String(run.id) === before)) this.select.value = before;
    this.show();
  }

  show() {
    const run = this.runs?.find(({ id }) => String(id) === this.select.value);
    this.select.hidden = (this.runs?.length || 0) < 2;
    if (!run) {
      this.note.textContent = this.data ? "no rows" : "";
      return;
    }
    if (this.key.kind === "image") this.showImage(run);
    else this.showHistogram(run);
  }

  showImage(run) {
    const last = run.images.length - 1, before = Number(this.slider.max);
    if (before !== last) {
      const atEnd = Number(this.slider.value) === before;
      this.slider.max = last;
      if (atEnd) this.slider.value = last;
    }
    const i = Math.min(Number(this.slider.value), last);
    this.slider.hidden = last < 1;
    if (this.url) URL.revokeObjectURL(this.url);
    this.url = URL.createObjectURL(new Blob([run.images[i]], { type: "image/png" }));
    this.picture.src = this.url;
    const some = run.images.length < run.rows ? ` (${run.images.length} of ${run.rows} rows)` : "";
    this.note.textContent = `${axisName(run.axis)} ${exact(run.x[i])}${some}`;
  }

  showHistogram(run) {
    const { canvas } = this, style = this.page.style(), ratio = devicePixelRatio;
    const width = canvas.parentElement.clientWidth - 20, height = HEIGHT;
    if (width <= 0) return;
    canvas.width = width * ratio;
    canvas.height = height * ratio;
    canvas.style.width = `${width}px`;
    canvas.style.height = `${height}px`;
    const context = canvas.getContext("2d");
    context.scale(ratio, ratio);
    let low = Infinity, high = -Infinity, most = 0;
    for (const edges of run.edges) for (const v of edges) if (Number.isFinite(v)) {
      low = Math.min(low, v);
      high = Math.max(high, v);
    }
    for (const counts of run.counts) for (const v of counts) if (v > most) most = v;
    if (!(high > low)) [low, high] = Number.isFinite(low) ? [low - 0.5, low + 0.5] : [0, 1];
    const left = 56, right = width - 12, top = 8, bottom = height - 24;
    const x0 = run.x[0], x1 = run.x[run.x.length - 1];
    const middle = (i) => left + ((right - left) * (run.x[i] - x0)) / (x1 - x0 || 1);
    const start = (i) => (i <= 0 ? left : i >= run.x.length ? right : (middle(i - 1) + middle(i)) / 2);
    const y = (v) => bottom - ((bottom - top) * (v - low)) / (high - low);
    this.box = { run, left, right, top, bottom, low, high, start };
    context.fillStyle = this.page.color(this.page.groupOf({ id: run.id })).line;
    run.counts.forEach((counts, i) => {
      const a = start(i), b = x1 > x0 ? start(i + 1) : right;
      for (let j = 0; j < counts.length; j++) {
        if (!(counts[j] > 0)) continue;
        context.globalAlpha = 0.06 + 0.94 * Math.sqrt(counts[j] / most);
        const upper = y(run.edges[i][j + 1]), lower = y(run.edges[i][j]);
        context.fillRect(a, upper, Math.max(b - a, 0.5) + 0.3, Math.max(lower - upper, 0.5) + 0.3);
      }
    });
    context.globalAlpha = 1;
    context.fillStyle = style.muted;
    context.font = style.font;
    context.textAlign = "right";
    for (const v of [low, (low + high) / 2, high]) context.fillText(short(Number(v.toPrecision(3))), left - 6, y(v) + (v === high ? 8 : v === low ? 0 : 4));
    context.fillText(short(x1), right, height - 8);
    context.textAlign = "left";
    context.fillText(short(x0), left, height - 8);
    const some = run.counts.length < run.rows ? `, ${run.counts.length} of ${run.rows} rows` : "";
    this.note.textContent = `over ${axisName(run.axis)}${some}`;
  }

  hover(event) {
    const { tooltip } = this.page;
    if (!this.box) return;
    const { run, left, right, top, bottom, low, high, start } = this.box;
    const { offsetX: px, offsetY: py } = event;
    if (px < left || px > right || py < top || py > bottom) { tooltip.hidden = true; return; }
    let i = 0;
    while (i + 1 < run.x.length && start(i + 1) <= px) i++;
    const v = low + ((bottom - py) / (bottom - top)) * (high - low);
    const j = run.edges[i].findIndex((edge, k) => k + 1 < run.edges[i].length && edge <= v && v <= run.edges[i][k + 1]);
    tooltip.replaceChildren(el("p", { class: "at" }, `${axisName(run.axis)} ${exact(run.x[i])}`),
      el("p", {}, j < 0 ? "outside all bins" : `${number(run.edges[i][j])} to ${number(run.edges[i][j + 1])}: ${number(run.counts[i][j])}`));
    tooltip.hidden = false;
    place(tooltip, this.canvas.getBoundingClientRect(), px, py);
  }

  destroy() {
    if (this.url) URL.revokeObjectURL(this.url);
  }
}
