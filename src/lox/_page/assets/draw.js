// Curves as shapes: what a chart draws on its canvas and what its SVG file contains.

// Where values are on the plot; `box` is in pixels.
function mapping(box, x, y) {
  const scale = ({ min, max, log }, start, size) => {
    const f = log ? Math.log10 : (v) => v;
    const low = f(min), factor = size / (f(max) - low || 1);
    return (v) => start + (f(v) - low) * factor;
  };
  return {
    box, x: scale(x, box.left, box.width), y: scale(y, box.top + box.height, -box.height),
    shown: (v) => Number.isFinite(v) && !(y.log && v <= 0),
    floor: y.log ? y.min : -Infinity,
    across: (v) => !(x.log && v <= 0),
  };
}

// A line through the smallest and largest value of each bucket. A bucket without rows
// (NaN) is skipped, one whose rows are not finite (infinity) interrupts the line.
function polyline(map, xs, first, xs2, second) {
  const lines = [];
  let line = null;
  const add = (x, v) => {
    if (Number.isNaN(v) || !map.across(x)) return;
    if (!map.shown(v)) { line = null; return; }
    if (!line) lines.push((line = []));
    line.push(map.x(x), map.y(v));
  };
  for (let i = 0; i < first.length; i++) {
    add(xs[i], first[i]);
    if (second) add(xs2[i], second[i]);
  }
  return lines;
}

function area(map, xs, low, high) {
  const areas = [];
  let top = null, bottom = null;
  for (let i = 0; i < low.length; i++) {
    if (!map.across(xs[i])) continue;
    if (!Number.isFinite(low[i]) || !Number.isFinite(high[i]) || high[i] <= map.floor) {
      top = null;
      continue;
    }
    if (!top) areas.push([(top = []), (bottom = [])]);
    const x = map.x(xs[i]);
    top.push(x, map.y(high[i]));
    bottom.push(x, map.y(Math.max(low[i], map.floor)));
  }
  return areas.map(([top, bottom]) => {
    for (let i = bottom.length - 2; i >= 0; i -= 2) top.push(bottom[i], bottom[i + 1]);
    return top;
  });
}

// An exponential moving average, corrected for its start.
function smoothed(values, weight) {
  const found = new Float64Array(values.length).fill(NaN);
  let sum = 0, total = 0;
  for (let i = 0; i < values.length; i++) {
    if (!Number.isFinite(values[i])) continue;
    sum = sum * weight + values[i] * (1 - weight);
    total = total * weight + (1 - weight);
    found[i] = sum / total;
  }
  return found;
}

// All shapes of a chart, from back to front.
function shapes(data, map, { band, smooth, seeds, hidden, colors, bad, halo }) {
  const found = [];
  const groups = data.groups.filter((group) => !hidden.has(group.label));
  const { from, to, middle } = data;
  for (const group of groups) {
    const color = colors(group.label);
    if (!(seeds || group.partial) || (group.count < 2 && !group.partial)) continue;
    // many lines over each other are not darker than a few
    const alpha = Math.max(0.35, 1.6 / Math.sqrt(group.lanes.length));
    const layer = group.lanes.map((i) => {
      const lane = data.curves[i];
      const lines = polyline(map, from, lane.first, to, lane.second);
      return { lines, color: color.line, width: 1, alpha: Math.min(alpha, 1) };
    });
    found.push({ layer, alpha: group.partial ? 0.8 : 0.32 });
  }
  for (const group of groups) {
    const limits = group.bands?.[band];
    if (!limits || group.partial) continue;
    const areas = area(map, middle, limits[0], limits[1]);
    found.push({ areas, color: colors(group.label).line, alpha: smooth ? 0.14 : 0.22 });
  }
  for (const group of groups) {
    if (group.partial) continue;
    const { line: color, dash } = colors(group.label);
    const lines = polyline(map, group.x || from, group.first, group.x2 || to, group.second);
    if (!smooth && group.count > 1) found.push({ lines, color: halo, width: 4, alpha: 0.7 });
    found.push({ lines, color, dash, width: smooth ? 1 : 1.75, alpha: smooth ? 0.35 : 1 });
    if (smooth) {
      const curve = polyline(map, middle, smoothed(group.average, smooth));
      found.push({ lines: curve, color: halo, width: 4.5, alpha: 0.7 });
      found.push({ lines: curve, color, dash, width: 2, alpha: 1 });
    }
  }
  const ticks = [], { box } = map, bottom = box.top + box.height;
  for (const group of groups)
    for (let i = 0; i < group.bad.length; i++)
      if (group.bad[i] && map.across(middle[i])) {
        const x = map.x(middle[i]);
        ticks.push([x, bottom, x, bottom - 7]);
      }
  if (ticks.length) found.push({ lines: ticks, color: bad, width: 1.5, alpha: 0.9 });
  return found;
}

function paint(context, found, ratio) {
  context.lineJoin = context.lineCap = "round";
  for (const shape of found) {
    context.globalAlpha = shape.alpha;
    if (shape.layer) {
      const { width, height } = context.canvas;
      const canvas = paint.layer ||= document.createElement("canvas");
      canvas.width = width; // which also clears it
      canvas.height = height;
      paint(canvas.getContext("2d"), shape.layer, ratio);
      context.drawImage(canvas, 0, 0);
      continue;
    }
    context.beginPath();
    for (const points of shape.lines || shape.areas) {
      context.moveTo(points[0], points[1]);
      if (points.length === 2) context.lineTo(points[0], points[1]);
      for (let i = 2; i < points.length; i += 2) context.lineTo(points[i], points[i + 1]);
    }
    if (shape.areas) {
      context.fillStyle = shape.color;
      context.fill();
    } else {
      context.setLineDash((shape.dash || []).map((length) => length * ratio));
      context.strokeStyle = shape.color;
      context.lineWidth = shape.width * ratio;
      context.stroke();
    }
  }
  context.setLineDash([]);
  context.globalAlpha = 1;
}

// The smallest and largest value that a chart draws between two values of x.
function limits(data, { band, seeds, hidden, low, high, log }) {
  let min = Infinity, max = -Infinity;
  const { from, to } = data;
  const add = (values) => {
    if (!values) return;
    for (let i = 0; i < values.length; i++) {
      const v = values[i];
      if (to[i] < low || from[i] > high || !Number.isFinite(v) || (log && v <= 0)) continue;
      if (v < min) min = v;
      if (v > max) max = v;
    }
  };
  for (const group of data.groups) {
    if (hidden.has(group.label)) continue;
    if (!group.partial) {
      add(group.first);
      add(group.second);
      for (const limit of group.bands?.[band] || []) add(limit);
    }
    if ((seeds && group.count > 1) || group.partial)
      for (const i of group.lanes) {
        add(data.curves[i].first);
        add(data.curves[i].second);
      }
  }
  return min <= max ? [min, max] : null;
}
