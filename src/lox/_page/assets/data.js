// Decodes packed arrays (see packing.py) and fetches the data of charts: from the file
// itself (StaticSource) or from `lox serve` (LiveSource).

const TYPES = {
  f4: Float32Array, f8: Float64Array, u1: Uint8Array,
  u2: Uint16Array, u4: Uint32Array, i4: Int32Array,
};

function unpack(buffer) {
  const size = new DataView(buffer).getUint32(0, true);
  const text = new TextDecoder().decode(new Uint8Array(buffer, 4, size));
  const bytes = new Uint8Array(buffer, 4 + size);
  return JSON.parse(text, (key, value) =>
    value && Array.isArray(value.$) ? array(bytes, ...value.$) : value);
}

function array(bytes, type, shape, offset) {
  const length = shape.reduce((a, b) => a * b, 1);
  const width = TYPES[type].BYTES_PER_ELEMENT;
  const raw = new Uint8Array(length * width);
  for (let plane = 0; plane < width; plane++) {
    const start = offset + plane * length;
    for (let i = 0; i < length; i++) raw[i * width + plane] = bytes[start + i];
  }
  const flat = new TYPES[type](raw.buffer);
  if (shape.length < 2) return flat;
  const row = length / shape[0] || 0;
  return Array.from({ length: shape[0] }, (_, i) => flat.subarray(i * row, (i + 1) * row));
}

async function inflate(text) {
  const packed = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("deflate"));
  return new Response(stream).arrayBuffer();
}

// Everything is in the file. Only prepared groupings and axes are there, and
// statistics of some runs of a group cannot be computed.
class StaticSource {
  constructor(content, block) {
    this.live = false;
    this.index = content.index;
    this.blocks = content.blocks;
    this.block = block;
    this.cache = new Map();
  }

  async read(name) {
    if (!this.cache.has(name)) {
      const text = this.block(name);
      this.cache.set(name, text == null ? null : inflate(text).then(unpack));
    }
    return this.cache.get(name);
  }

  axes(key) {
    return Object.keys(this.blocks.charts[key.name] || {});
  }

  async chart({ key, x, by }) {
    const axes = this.blocks.charts[key] || {};
    const found = axes[x] || Object.values(axes)[0];
    if (!found) return null;
    const lanes = await this.read(found.lanes);
    const groups = by === "@run" ? { groups: [] } : await this.read(found.groups[by] || found.groups["@auto"]);
    return { ...lanes, ...groups };
  }

  async media(key) {
    const name = this.blocks.media[key];
    return name == null ? null : this.read(name);
  }

  async refresh() {
    return null;
  }
}

// `lox serve` computes what is asked for.
class LiveSource {
  constructor(index) {
    this.live = true;
    this.index = index;
    this.failed = false;
  }

  axes(key) {
    const scalars = this.index.keys.filter((k) => k.kind === "scalar");
    const times = key.times ? ["#time", "#clock"] : [];
    return [...key.steps, ...times, "#row", ...scalars.map((k) => `key:${k.name}`)];
  }

  async get(path, parameters) {
    const query = new URLSearchParams();
    for (const [name, value] of Object.entries(parameters))
      for (const item of Array.isArray(value) ? value : [value])
        if (item != null && item !== "") query.append(name, item);
    const response = await fetch(`${path}?${query}`, { credentials: "same-origin" });
    if (!response.ok) throw new Error(await response.text());
    return response;
  }

  async chart({ key, x, by, band, range, runs, buckets, after, width }) {
    const [low, high] = range || [];
    const response = await this.get("chart", {
      key, x, by: by === "@run" ? "@all" : by, band, low, high, runs, buckets, after, width,
    });
    return unpack(await response.arrayBuffer());
  }

  async media(key) {
    return unpack(await (await this.get("media", { key })).arrayBuffer());
  }

  // What has changed; null if nothing has.
  async refresh() {
    const news = await (await this.get("index", { since: this.index.version })).json();
    if (news.version === this.index.version) return null;
    const known = new Map(this.index.runs.map((run) => [run.id, run]));
    const changed = new Set(news.runs.map((run) => run.id));
    for (const run of news.runs) known.set(run.id, run);
    news.runs = news.order.map((id) => known.get(id));
    this.index = { ...this.index, ...news }; // groupings come only if they changed
    return changed;
  }
}
