// Elements and numbers. Text from runs only ever becomes text nodes.

function el(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else if (value !== false && value != null) element.setAttribute(name, value);
  }
  element.append(...children.flat().filter((child) => child != null));
  return element;
}

function trimmed(text) {
  return text.includes(".") ? text.replace(/\.?0+(?=e|$)/, "") : text;
}

// A value, with four digits.
function number(value) {
  if (typeof value === "string") return value;
  if (value == null || Number.isNaN(value)) return "–";
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  if (Number.isInteger(value) && Math.abs(value) < 1e7) return value.toLocaleString("en-US").replace("-", "−");
  const size = Math.abs(value);
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(3) : value.toPrecision(4);
  return trimmed(text).replace("e+", "e").replaceAll("-", "−");
}

// A position on the x-axis, with all digits.
function exact(value) {
  return value.toLocaleString("en-US", { maximumSignificantDigits: 12 }).replace("-", "−");
}

// A tick of an axis.
function short(value) {
  const size = Math.abs(value);
  for (const [unit, name] of [[1e9, "G"], [1e6, "M"], [1e3, "k"]])
    if (size >= unit && size < 1e12 && (unit > 1e3 || size >= 1e4))
      return trimmed((value / unit).toPrecision(6)).replace("-", "−") + name;
  if (value === 0) return "0";
  const text = size >= 1e5 || size < 1e-3 ? value.toExponential(2) : value.toPrecision(6);
  return trimmed(text).replace("e+", "e").replaceAll("-", "−");
}

const AXES = { "#row": "row", "#time": "relative time", "#clock": "wall time" };

function axisName(axis) {
  return AXES[axis] ?? (axis.startsWith("key:") ? axis.slice(4) : axis);
}

function isTime(axis) {
  return axis === "#time" || axis === "#clock";
}

// --- times in seconds: since the start of a run, or since 1970 ---

const UNITS = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
// distances of ticks, which are round in the units above
const TIME_STEPS = [
  ...[-6, -5, -4, -3, -2, -1].flatMap((e) => [1, 2, 5].map((m) => m * 10 ** e)),
  1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200,
  ...[0, 1, 2, 3].flatMap((e) => [1, 2, 5].map((m) => 86400 * m * 10 ** e)),
];

// Ticks of relative time, all in the same unit, unless the axis is logarithmic.
function durationTicks(splits, log) {
  const largest = Math.max(...splits.map((v) => Math.abs(v ?? 0)));
  return splits.map((v) => {
    if (v == null) return "";
    const [size, unit] = UNITS.find(([size]) => (log ? Math.abs(v) : largest) >= (size === 1 ? 0 : 5 * size));
    return v === 0 ? "0" : `${trimmed((v / size).toPrecision(4))} ${unit}`.replace("-", "−");
  });
}

const twoDigits = (n) => String(n).padStart(2, "0");

function dayText(date) {
  return `${date.getFullYear()}-${twoDigits(date.getMonth() + 1)}-${twoDigits(date.getDate())}`;
}

// Ticks of wall time in the time zone of the reader; the date is shown where it
// changes.
function clockTicks(splits, step) {
  let before = "";
  return splits.map((v) => {
    if (v == null) return "";
    const date = new Date(1000 * v), day = dayText(date);
    const seconds = step < 60 ? `:${twoDigits(date.getSeconds())}` : "";
    const fraction = step < 1 ? `.${Math.round(date.getMilliseconds() / 100)}` : "";
    const time = step < 86400 ? `${twoDigits(date.getHours())}:${twoDigits(date.getMinutes())}${seconds}${fraction}\n` : "";
    const text = time + (day === before ? "" : day);
    before = day;
    return text.trimEnd();
  });
}

// A position on an x-axis.
function positionText(axis, value) {
  if (axis === "#clock") {
    const date = new Date(1000 * value);
    return `${dayText(date)} ${[date.getHours(), date.getMinutes(), date.getSeconds()].map(twoDigits).join(":")}`;
  }
  if (axis !== "#time") return exact(value);
  let left = Math.abs(value);
  const parts = [];
  for (const [size, unit] of UNITS.slice(0, 3)) {
    const count = Math.floor(left / size);
    left -= count * size;
    if (count || parts.length) parts.push(`${count} ${unit}`);
  }
  const digits = parts.length ? Math.min(Math.floor(left), 59) : trimmed(left.toPrecision(3));
  return `${value < 0 ? "−" : ""}${[...parts, `${digits} s`].slice(0, 3).join(" ")}`;
}

function swatch({ line, dash }) {
  const mark = el("span", { class: "swatch" });
  mark.style.borderTopColor = line;
  mark.style.borderTopStyle = dash?.length ? (dash[0] > 3 ? "dashed" : "dotted") : "solid";
  return mark;
}

// Puts the tooltip next to the pointer, inside the window.
function place(tooltip, box, left, top) {
  const { offsetWidth: width, offsetHeight: height } = tooltip;
  let x = box.left + left + 16;
  if (x + width > innerWidth - 8) x = Math.max(box.left + left - width - 16, 8);
  const y = Math.min(Math.max(box.top + top - height / 2, 8), Math.max(innerHeight - height - 8, 8));
  tooltip.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
}
