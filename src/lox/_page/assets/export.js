// One chart as a file: CSV, SVG or PNG.

function saveChart(chart, kind) {
  const name = chart.key.name.replace(/[^\w.-]+/g, "_").slice(0, 80) || "chart";
  if (kind === "csv") return download(`${name}.csv`, new Blob([chartCsv(chart)], { type: "text/csv" }));
  if (kind === "svg") return download(`${name}.svg`, new Blob([chartSvg(chart)], { type: "image/svg+xml" }));
  chartPng(chart).toBlob((blob) => download(`${name}.png`, blob));
}

function download(name, blob) {
  const url = URL.createObjectURL(blob);
  const link = el("a", { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 60000);
}

function shownGroups(chart) {
  return chart.data.groups.filter((group) => !chart.page.hidden.has(group.label));
}

function chartCsv(chart) {
  const { data, page } = chart;
  const band = page.state.band;
  const quote = (text) => `"${String(text).replaceAll('"', '""')}"`;
  const x = axisName(chart.axis), unit = isTime(chart.axis) ? " (s)" : "";
  const lines = [["curve", x + unit, `${x}_end${unit}`, "value", "low", "high", "n"].map(quote).join(",")];
  const row = (label, x, end, value, low, high, n) => {
    if (!Number.isNaN(value)) lines.push([quote(label), x, end, value, low ?? "", high ?? "", n].join(","));
  };
  for (const group of shownGroups(chart)) {
    const limits = group.bands?.[band];
    for (let i = 0; i < (group.partial ? 0 : group.first.length); i++) {
      const x = (group.x || data.from)[i];
      row(group.title ?? group.label, x, x, group.first[i], limits?.[0][i], limits?.[1][i], group.n[i]);
      if (group.second && group.x2[i] !== x)
        row(group.title ?? group.label, group.x2[i], group.x2[i], group.second[i], limits?.[0][i], limits?.[1][i], group.n2[i]);
    }
    for (const index of group.count > 1 || group.partial ? group.lanes : []) {
      const lane = data.curves[index];
      for (let i = 0; i < lane.first.length; i++) {
        row(page.laneName(lane), data.from[i], data.to[i], lane.first[i], null, null, 1);
        if (lane.second && lane.second[i] !== lane.first[i])
          row(page.laneName(lane), data.from[i], data.to[i], lane.second[i], null, null, 1);
      }
    }
  }
  return `${lines.join("\n")}\n`;
}

// The ticks that the chart shows, in CSS pixels.
function ticks(u) {
  return u.axes.map((axis, i) => {
    const scale = i === 0 ? "x" : "y";
    return (axis._splits || []).map((v, j) => ({ at: v == null ? null : u.valToPos(v, scale), text: axis._values[j] }))
      .filter(({ at, text }) => at != null && text !== "");
  });
}

function chartSvg(chart) {
  const { u, page } = chart;
  const style = page.style();
  const legend = shownGroups(chart).filter((g) => chart.data.groups.length > 1 || g.count > 1);
  const left = u.bbox.left / devicePixelRatio, top = 34;
  const box = { left, top, width: u.bbox.width / devicePixelRatio, height: u.bbox.height / devicePixelRatio };
  const below = top + box.height + (chart.axis === "#clock" ? 12 : 0); // of the plot and a second line
  const width = u.width, height = below + 40 + 18 * legend.length;
  const space = "http://www.w3.org/2000/svg";
  const make = (tag, attributes, text) => {
    const node = document.createElementNS(space, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    if (text != null) node.textContent = text;
    return node;
  };
  const svg = make("svg", { width, height, viewBox: `0 0 ${width} ${height}`,
    "font-family": "system-ui, sans-serif", "font-size": 11 });
  svg.append(make("rect", { width, height, fill: style.card }));
  svg.append(make("text", { x: 12, y: 20, fill: style.text, "font-size": 13, "font-weight": 600 }, chart.key.name));
  const [across, up] = ticks(u);
  for (const { at, text } of across) {
    svg.append(make("line", { x1: left + at, x2: left + at, y1: top, y2: top + box.height, stroke: style.grid }));
    text.split("\n").forEach((line, i) => svg.append(make("text", { x: left + at, y: top + box.height + 15 + 12 * i,
      fill: style.muted, "text-anchor": "middle" }, line)));
  }
  for (const { at, text } of up) {
    svg.append(make("line", { x1: left, x2: left + box.width, y1: top + at, y2: top + at, stroke: style.grid }));
    svg.append(make("text", { x: left - 6, y: top + at + 4, fill: style.muted, "text-anchor": "end" }, text));
  }
  svg.append(make("text", { x: left + box.width, y: below + 30, fill: style.muted, "text-anchor": "end" },
    axisName(chart.axis)));
  const clip = make("clipPath", { id: "plot" });
  clip.append(make("rect", { x: left, y: top, width: box.width, height: box.height }));
  const curves = make("g", { "clip-path": "url(#plot)", "stroke-linejoin": "round", "stroke-linecap": "round" });
  const add = (parent, shape) => {
    if (shape.layer) {
      const layer = make("g", { opacity: shape.alpha });
      for (const inner of shape.layer) add(layer, inner);
      parent.append(layer);
      return;
    }
    const d = (shape.lines || shape.areas).map((points) => {
      const pairs = [];
      for (let i = 0; i < points.length; i += 2) pairs.push(`${points[i].toFixed(2)} ${points[i + 1].toFixed(2)}`);
      return `M${pairs.join("L")}${shape.areas ? "Z" : ""}`;
    }).join("");
    parent.append(make("path", shape.areas
      ? { d, fill: shape.color, "fill-opacity": shape.alpha }
      : { d, fill: "none", stroke: shape.color, "stroke-width": shape.width, "stroke-opacity": shape.alpha,
          ...(shape.dash?.length ? { "stroke-dasharray": shape.dash.join(" ") } : {}) }));
  };
  for (const shape of chart.shapes(box)) add(curves, shape);
  svg.append(clip, curves);
  legend.forEach((group, i) => {
    const y = below + 48 + 18 * i, { line, dash } = page.color(group.label);
    svg.append(make("line", { x1: left, x2: left + 18, y1: y - 4, y2: y - 4, stroke: line, "stroke-width": 2,
      ...(dash?.length ? { "stroke-dasharray": dash.join(" ") } : {}) }));
    svg.append(make("text", { x: left + 24, y, fill: style.text }, legendText(chart, group)));
  });
  return new XMLSerializer().serializeToString(svg);
}

function legendText(chart, group) {
  const { band } = chart.page.state;
  const kind = band === "none" || group.partial ? "" : `, ${BAND_NAMES[band]}`;
  return group.count > 1 ? `${group.label} (n = ${group.count}${kind})` : group.title ?? group.label;
}

function chartPng(chart) {
  const { u, page } = chart;
  const style = page.style(), ratio = devicePixelRatio;
  const legend = shownGroups(chart).filter((g) => chart.data.groups.length > 1 || g.count > 1);
  const canvas = document.createElement("canvas");
  canvas.width = u.ctx.canvas.width;
  canvas.height = u.ctx.canvas.height + (30 + 8 + 18 * legend.length) * ratio;
  const context = canvas.getContext("2d");
  context.fillStyle = style.card;
  context.fillRect(0, 0, canvas.width, canvas.height);
  context.drawImage(u.ctx.canvas, 0, 30 * ratio);
  context.scale(ratio, ratio);
  context.font = `600 13px ${style.family}`;
  context.fillStyle = style.text;
  context.fillText(chart.key.name, 12, 20);
  context.font = `11px ${style.family}`;
  const left = u.bbox.left / ratio;
  legend.forEach((group, i) => {
    const y = 30 + u.height + 14 + 18 * i, { line, dash } = page.color(group.label);
    context.strokeStyle = line;
    context.lineWidth = 2;
    context.setLineDash(dash || []);
    context.beginPath();
    context.moveTo(left, y - 4);
    context.lineTo(left + 18, y - 4);
    context.stroke();
    context.fillText(legendText(chart, group), left + 24, y);
  });
  return canvas;
}
