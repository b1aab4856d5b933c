// The entry points of a page: in a file, at `lox serve`, or in a notebook.

function startFile() {
  const block = (name) => document.getElementById(name)?.textContent;
  const source = new StaticSource(JSON.parse(block("lox-content")), block);
  new Page(document.getElementById("lox"), source, { useHash: true });
}

function startLive() {
  const index = JSON.parse(document.getElementById("lox-content").textContent);
  new Page(document.getElementById("lox"), new LiveSource(index), { useHash: true });
}

// A shadow root separates the styles of the notebook from those of the page.
function startNotebook(id, style, content, blocks) {
  const host = document.getElementById(id);
  const root = host.shadowRoot || host.attachShadow({ mode: "open" });
  const sheet = document.createElement("style");
  sheet.textContent = style;
  const place = document.createElement("div");
  root.replaceChildren(sheet, place);
  new Page(place, new StaticSource(content, (name) => blocks[name]), { useHash: false });
}
