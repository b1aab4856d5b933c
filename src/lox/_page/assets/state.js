// What the page shows. It is kept in the hash of the URL, so that a link restores it.

const DEFAULTS = {
  view: "charts", by: "@auto", band: "ci", x: "", logx: false, logy: false, smooth: 0,
  seeds: true, keys: "", runs: "", hidden: [], off: [], range: null, sort: "", theme: "",
};

class State {
  constructor(useHash) {
    this.useHash = useHash;
    this.listeners = [];
    Object.assign(this, structuredClone(DEFAULTS));
    if (useHash) {
      this.read();
      addEventListener("hashchange", () => {
        if (location.hash !== this.written) {
          this.read();
          this.emit(Object.keys(DEFAULTS));
        }
      });
    }
  }

  read() {
    const query = new URLSearchParams(location.hash.slice(1));
    for (const [name, initial] of Object.entries(DEFAULTS)) {
      const text = query.get(name);
      this[name] = structuredClone(initial);
      if (text == null) continue;
      try {
        if (typeof initial === "string") this[name] = text;
        else if (typeof initial === "boolean") this[name] = text === "1";
        else if (typeof initial === "number") this[name] = Math.min(Math.max(+text || 0, 0), 0.999);
        else {
          const value = JSON.parse(text);
          if (Array.isArray(value)) this[name] = value;
        }
      } catch { /* a damaged link: the default */ }
    }
    if (this.range && !(this.range[1] < this.range[2])) this.range = null;
  }

  set(changes) {
    const changed = Object.keys(changes).filter(
      (name) => JSON.stringify(this[name]) !== JSON.stringify(changes[name]));
    if (!changed.length) return;
    Object.assign(this, changes);
    this.write();
    this.emit(changed);
  }

  write() {
    if (!this.useHash) return;
    const query = new URLSearchParams();
    for (const [name, initial] of Object.entries(DEFAULTS)) {
      const value = this[name];
      if (JSON.stringify(value) === JSON.stringify(initial)) continue;
      query.set(name, typeof value === "object" ? JSON.stringify(value)
        : typeof value === "boolean" ? (value ? "1" : "0") : value);
    }
    this.written = `#${query}`;
    history.replaceState(null, "", this.written);
    this.written = location.hash;
  }

  emit(changed) {
    for (const listener of this.listeners) listener(new Set(changed));
  }
}
