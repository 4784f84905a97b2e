// The page of tfm attend: draws the attention weights in the element "data".
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const NOTHING = { query: null, key: null };
const LINE_PIXELS = 24;        // height of a piece in the columns
const MIN_WEIGHT = 0.02;       // smaller weights have no line
const NUM_COLORS = 8;

// The current view. It is stored in the address after "#", so that it can be bookmarked.
let view;
// Index of the query and the key under the pointer: one of them, both (a cell) or none.
let pointed = NOTHING;

function readView() {
  const address = new URLSearchParams(location.hash.slice(1));
  const maps = data.maps.find((m) => m.kind === address.get("kind"))
    || data.maps.find((m) => m.kind === data.start.kind);
  const parseNumber = (text, count) => {
    const number = Number.parseInt(text, 10);
    return number >= 1 && number <= count ? number : null;
  };
  const numHeads = maps.weights[0].length;
  const heads = (address.get("heads") || "").split(".").map((h) => parseNumber(h, numHeads));
  const index = (name, pieces) => {
    const number = parseNumber(address.get(name), pieces.length);
    return number === null ? null : number - 1;
  };
  view = {
    maps,
    layer: parseNumber(address.get("layer"), maps.weights.length)
      || Math.min(data.start.layer, maps.weights.length),
    heads: address.has("heads") ? heads.filter((h) => h !== null)
      : data.start.heads.filter((h) => h <= numHeads),
    kept: { query: index("query", maps.queries), key: index("key", maps.keys) },
  };
}

function show(changes) {
  const next = { kind: view.maps.kind, ...view, ...changes };
  const address = new URLSearchParams({
    kind: next.kind, layer: next.layer, heads: next.heads.join("."),
  });
  for (const side of ["query", "key"]) {
    if (next.kept[side] !== null) address.set(side, next.kept[side] + 1);
  }
  location.replace("#" + address);
}

function element(name, properties, children) {
  const created = Object.assign(document.createElement(name), properties);
  created.append(...(children || []));
  return created;
}

// A toggle button. Its name identifies it when the page is drawn again.
function toggle(name, label, pressed, onclick) {
  const button = element("button", { type: "button", name, textContent: label, onclick });
  button.setAttribute("aria-pressed", pressed);
  return button;
}

const color = (head) => `var(--head-${(head - 1) % NUM_COLORS})`;

// The mean weight of the chosen heads, from 0 to 1.
function meanWeight(query, key) {
  const layer = view.maps.weights[view.layer - 1];
  const sum = view.heads.reduce((total, head) => total + layer[head - 1][query][key], 0);
  return view.heads.length ? sum / view.heads.length / 1000 : 0;
}

function drawControls() {
  const { maps, layer, heads } = view;
  document.getElementById("kinds").replaceChildren(
    ...data.maps.map((m) => toggle(
      m.kind, m.title, m === maps, () => show({ kind: m.kind, kept: NOTHING }),
    )),
  );
  document.getElementById("layers").replaceChildren(
    element("span", { textContent: "Layer" }),
    ...maps.weights.map((_, i) => toggle(
      `layer-${i + 1}`, i + 1, i + 1 === layer, () => show({ layer: i + 1 }),
    )),
  );
  const all = maps.weights[0].map((_, i) => i + 1);
  const chips = all.map((head) => {
    const others = heads.filter((h) => h !== head);
    const isOn = others.length < heads.length;
    const chip = toggle(`head-${head}`, head, isOn, () => show({
      heads: isOn ? others : [...heads, head].sort((a, b) => a - b),
    }));
    chip.style.setProperty("--color", color(head));
    chip.setAttribute("aria-label", `Head ${head}`);
    return chip;
  });
  const several = [["all", all], ["none", []]].map(([name, chosen]) => element("button", {
    type: "button", name, textContent: name, onclick: () => show({ heads: chosen }),
  }));
  document.getElementById("heads").replaceChildren(
    element("span", { textContent: "Heads" }), ...chips, ...(all.length > 1 ? several : []),
  );
}

function pieceColumn(side, name, pieces) {
  const buttons = pieces.map((piece, index) => {
    const only = { ...NOTHING, [side]: index };
    const isKept = view.kept[side] === index;
    const kept = isKept ? NOTHING : only;
    const button = toggle(`${side}-${index + 1}`, piece, isKept, () => show({ kept }));
    button.onmouseenter = button.onfocus = () => point(only);
    button.onmouseleave = button.onblur = () => point(NOTHING);
    button.dir = "auto";
    return button;
  });
  const column = element("div", { className: `column ${side === "query" ? "queries" : "keys"}` });
  column.append(element("span", { textContent: name }), ...buttons);
  return column;
}

function drawLines() {
  const { maps, layer, heads } = view;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  svg.setAttribute("aria-hidden", "true");
  heads.forEach((head, position) => {
    const shift = 2 * (position - (heads.length - 1) / 2);  // draws heads side by side
    maps.weights[layer - 1][head - 1].forEach((row, query) => row.forEach((weight, key) => {
      if (weight / 1000 < MIN_WEIGHT) return;
      const line = document.createElementNS(svg.namespaceURI, "line");
      const height = (index) => (index + 1.5) * LINE_PIXELS + shift;
      const ends = { x1: "0%", y1: height(query), x2: "100%", y2: height(key) };
      for (const [name, value] of Object.entries(ends)) line.setAttribute(name, value);
      line.style.stroke = color(head);
      line.style.strokeOpacity = weight / 1000;
      Object.assign(line.dataset, { query, key });
      svg.append(line);
    }));
  });
  document.getElementById("lines").replaceChildren(
    pieceColumn("query", maps.query_name, maps.queries),
    svg,
    pieceColumn("key", maps.key_name, maps.keys),
  );
}

function place(child, row, column) {
  child.style.setProperty("--row", row);
  child.style.setProperty("--column", column);
  return child;
}

function drawMap() {
  const { maps, heads } = view;
  const numKeys = maps.keys.length;
  const numQueries = maps.queries.length;
  const children = [];
  maps.queries.forEach((piece, query) => {
    const label = element("b", { className: "query", textContent: piece, dir: "auto" });
    children.push(place(label, query + 1, 2));
    maps.keys.forEach((_, key) => {
      const cell = place(element("i", {}), query + 1, key + 3);
      cell.style.setProperty("--weight", meanWeight(query, key).toFixed(3));
      cell.onmouseenter = () => point({ query, key });
      children.push(cell);
    });
  });
  maps.keys.forEach((piece, key) => {
    const label = element("b", { className: "key", textContent: piece });
    children.push(place(label, numQueries + 1, key + 3));
  });
  const [rows, columns] = [`1 / span ${numQueries}`, `3 / span ${numKeys}`];
  const title = (name, className) => element("b", { className, textContent: name });
  children.push(
    place(element("div", { className: "frame" }), rows, columns),
    place(title(maps.query_name, "title vertical"), rows, 1),
    place(title(maps.key_name, "title"), numQueries + 2, columns),
  );
  const map = document.getElementById("map");
  map.style.gridTemplateColumns = `auto max-content repeat(${numKeys}, minmax(1rem, 1fr))`;
  map.onmouseleave = () => point(NOTHING);
  map.setAttribute("aria-label",
    `Heat map: ${maps.query_name} in ${numQueries} rows, ${maps.key_name} in ${numKeys} columns`);
  map.replaceChildren(...children);
  const which = heads.length === 1 ? `head ${heads[0]}`
    : heads.length ? `mean of heads ${heads.join(", ")}` : "no head chosen";
  document.getElementById("map-title").textContent = `Heat map, layer ${view.layer}, ${which}`;
}

function drawOverview() {
  const { maps, layer, heads } = view;
  const heat = getComputedStyle(document.documentElement).getPropertyValue("--heat");
  const overview = document.getElementById("overview");
  const numHeads = maps.weights[0].length;
  overview.style.gridTemplateColumns = `auto repeat(${numHeads}, minmax(2.5rem, 8rem))`;
  const title = (text) => element("span", { textContent: text });
  const children = [title(""), ...maps.weights[0].map((_, head) => title(`head ${head + 1}`))];
  maps.weights.forEach((layerWeights, l) => {
    children.push(title(`layer ${l + 1}`));
    layerWeights.forEach((rows, h) => {
      const canvas = element("canvas", { width: maps.keys.length, height: maps.queries.length });
      const pen = canvas.getContext("2d");
      pen.fillStyle = heat;
      rows.forEach((row, query) => row.forEach((weight, key) => {
        pen.globalAlpha = weight / 1000;
        pen.fillRect(key, query, 1, 1);
      }));
      const isShown = l + 1 === layer && heads.includes(h + 1);
      const button = toggle(
        `map-${l + 1}-${h + 1}`, "", isShown, () => show({ layer: l + 1, heads: [h + 1] }),
      );
      button.setAttribute("aria-label", `Layer ${l + 1}, head ${h + 1}`);
      button.append(canvas);
      children.push(button);
    });
  });
  overview.replaceChildren(...children);
}

function point(at) {
  pointed = at;
  drawPointed();
}

// Highlight the pieces under the pointer, else the kept ones, in all pictures and as text.
function drawPointed() {
  const { maps, kept } = view;
  const at = pointed.query !== null || pointed.key !== null ? pointed : kept;
  const isNone = at.query === null && at.key === null;
  const isSelected = (query, key) => (at.query === null || at.query === Number(query))
    && (at.key === null || at.key === Number(key));
  for (const line of document.querySelectorAll("#lines line")) {
    line.style.display = isSelected(line.dataset.query, line.dataset.key) ? "" : "none";
  }
  for (const [name, side, other] of [["queries", "query", "key"], ["keys", "key", "query"]]) {
    document.querySelectorAll(`#lines .${name} button`).forEach((button, index) => {
      let shade = "";
      if (at[side] === null && at[other] !== null) {
        const weight = side === "key" ? meanWeight(at.query, index) : meanWeight(index, at.key);
        shade = `color-mix(in srgb, var(--accent) ${(45 * weight).toFixed(1)}%, transparent)`;
      }
      button.style.setProperty("--shade", shade);
      button.classList.toggle("chosen", at[side] === index);
    });
    document.querySelectorAll(`#map .${side}`).forEach((label, index) => {
      label.classList.toggle("chosen", at[side] === index);
    });
  }
  document.querySelector("#map .band")?.remove();
  if (!isNone) {
    const rows = at.query === null ? `1 / span ${maps.queries.length}` : at.query + 1;
    const columns = at.key === null ? `3 / span ${maps.keys.length}` : at.key + 3;
    document.getElementById("map").append(
      place(element("div", { className: "band" }), rows, columns),
    );
  }
  document.getElementById("readout").textContent = isNone
    ? "Point at a cell to see its weights." : describe(at);
}

function describe(at) {
  const { maps, layer, heads } = view;
  const number = (weight) => weight.toFixed(2);
  if (at.query !== null && at.key !== null) {
    const weights = heads.map((head) => {
      const weight = maps.weights[layer - 1][head - 1][at.query][at.key] / 1000;
      return `head ${head} ${number(weight)}`;
    });
    return `“${maps.queries[at.query]}” attends to “${maps.keys[at.key]}”: ${weights.join(", ")}`;
  }
  const pieces = at.key === null ? maps.keys : maps.queries;
  const strongest = pieces
    .map((piece, i) => [piece, at.key === null ? meanWeight(at.query, i) : meanWeight(i, at.key)])
    .filter(([, weight]) => weight >= MIN_WEIGHT)
    .sort(([, a], [, b]) => b - a)
    .slice(0, 5)
    .map(([piece, weight]) => `“${piece}” ${number(weight)}`)
    .join(", ");
  const chosen = at.key === null ? `“${maps.queries[at.query]}” attends to`
    : `“${maps.keys[at.key]}” is attended to by`;
  return `${chosen} ${strongest || "nothing much"}`;
}

function draw() {
  const focused = document.activeElement.name;
  readView();
  pointed = NOTHING;
  document.getElementById("title").textContent = `${view.maps.title}, layer ${view.layer}`;
  drawControls();
  drawLines();
  drawMap();
  drawOverview();
  drawPointed();
  if (focused) document.getElementsByName(focused)[0]?.focus();
}

for (const side of ["source", "target"]) {
  const paragraph = document.getElementById(side);
  Object.assign(paragraph, { textContent: data[side].text, lang: data[side].language.replace("_", "-") });
}
document.getElementById("model").textContent = `${data.note}\n${data.symbols}`;
document.title = `Attention: ${data.source.text}`;
addEventListener("hashchange", draw);
addEventListener("keydown", (event) => {
  if (event.key === "Escape") show({ kept: NOTHING });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawOverview);
draw();
