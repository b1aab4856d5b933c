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

function axisName(axis) {
  if (axis === "#row") return "row";
  return axis.startsWith("key:") ? axis.slice(4) : axis;
}

function swatch({ line, dash }) {
  const mark = el("span", { class: "swatch" });
  mark.style.borderTopColor = line;
  mark.style.borderTopStyle = dash?.length ? (dash[0] > 3 ? "dashed" : "dotted") : "solid";
  return mark;
}

// Puts the tooltip beside the pointer, inside the window.
function place(tooltip, box, left, top) {
  const { offsetWidth: width, offsetHeight: height } = tooltip;
  let x = box.left + left + 16;
  if (x + width > innerWidth - 8) x = Math.max(box.left + left - width - 16, 8);
  const y = Math.min(Math.max(box.top + top - height / 2, 8), Math.max(innerHeight - height - 8, 8));
  tooltip.style.transform = `translate(${Math.round(x)}px, ${Math.round(y)}px)`;
}
