// The page of tfm attend: pictures of the attention weights that stand in its element "data".
"use strict";

const data = JSON.parse(document.getElementById("data").textContent);
const LINE_PIXELS = 24;        // the height of a piece in the columns
const LEAST_WEIGHT = 0.02;     // lines of less would only be haze
const COLORS = 8;

// What is shown: the address after "#" says it, so that a view can be bookmarked.
let view;
// What is pointed at: the index of a query, of a key, of both (a cell), or of neither.
let pointed = { query: null, key: null };

function readView() {
  const given = new URLSearchParams(location.hash.slice(1));
  const maps = data.maps.find((m) => m.kind === given.get("kind"))
    || data.maps.find((m) => m.kind === data.start.kind);
  const within = (text, count) => {
    const number = Number.parseInt(text, 10);
    return number >= 1 && number <= count ? number : null;
  };
  const numHeads = maps.weights[0].length;
  const heads = (given.get("heads") || "").split(".").map((h) => within(h, numHeads));
  const index = (name, pieces) => {
    const number = within(given.get(name), pieces.length);
    return number === null ? null : number - 1;
  };
  view = {
    maps,
    layer: within(given.get("layer"), maps.weights.length)
      || Math.min(data.start.layer, maps.weights.length),
    heads: given.has("heads") ? heads.filter((h) => h !== null)
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
  const made = Object.assign(document.createElement(name), properties);
  made.append(...(children || []));
  return made;
}

// A button that is on or off; by its name it is found again when all is drawn anew.
function choice(name, label, pressed, choose) {
  const button = element("button", { type: "button", name, textContent: label, onclick: choose });
  button.setAttribute("aria-pressed", pressed);
  return button;
}

const color = (head) => `var(--head-${(head - 1) % COLORS})`;

// Of the chosen heads: the mean weight, as a number from 0 to 1.
function meanWeight(query, key) {
  const layer = view.maps.weights[view.layer - 1];
  const sum = view.heads.reduce((total, head) => total + layer[head - 1][query][key], 0);
  return view.heads.length ? sum / view.heads.length / 1000 : 0;
}

function drawControls() {
  const { maps, layer, heads } = view;
  const nothing = { query: null, key: null };
  document.getElementById("kinds").replaceChildren(
    ...data.maps.map((m) => choice(
      m.kind, m.title, m === maps, () => show({ kind: m.kind, kept: nothing }),
    )),
  );
  document.getElementById("layers").replaceChildren(
    element("span", { textContent: "Layer" }),
    ...maps.weights.map((_, i) => choice(
      `layer-${i + 1}`, i + 1, i + 1 === layer, () => show({ layer: i + 1 }),
    )),
  );
  const all = maps.weights[0].map((_, i) => i + 1);
  const chips = all.map((head) => {
    const others = heads.filter((h) => h !== head);
    const isOn = others.length < heads.length;
    const chip = choice(`head-${head}`, head, isOn, () => show({
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
    const other = side === "query" ? "key" : "query";
    const only = { [side]: index, [other]: null };
    const isKept = view.kept[side] === index;
    const kept = isKept ? { query: null, key: null } : only;
    const button = choice(`${side}-${index + 1}`, piece, isKept, () => show({ kept }));
    button.onmouseenter = button.onfocus = () => point(only);
    button.onmouseleave = button.onblur = () => point({ query: null, key: null });
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
  heads.forEach((head, place) => {
    const shift = 2 * (place - (heads.length - 1) / 2);  // heads side by side
    maps.weights[layer - 1][head - 1].forEach((row, query) => row.forEach((weight, key) => {
      if (weight / 1000 < LEAST_WEIGHT) return;
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

function placed(made, row, column) {
  made.style.setProperty("--row", row);
  made.style.setProperty("--column", column);
  return made;
}

function drawMap() {
  const { maps, heads } = view;
  const numKeys = maps.keys.length;
  const numQueries = maps.queries.length;
  const side = Math.max(12, Math.min(26, Math.floor(720 / Math.max(numKeys, numQueries))));
  const children = [];
  maps.queries.forEach((piece, query) => {
    const label = element("b", { className: "query", textContent: piece, dir: "auto" });
    children.push(placed(label, query + 1, 1));
    maps.keys.forEach((_, key) => {
      const cell = placed(element("i", {}), query + 1, key + 2);
      cell.style.setProperty("--weight", meanWeight(query, key).toFixed(3));
      cell.onmouseenter = () => point({ query, key });
      children.push(cell);
    });
  });
  maps.keys.forEach((piece, key) => {
    const label = element("b", { className: "key", textContent: piece });
    children.push(placed(label, numQueries + 1, key + 2));
  });
  children.push(placed(element("div", { className: "frame" }), `1 / span ${numQueries}`,
    `2 / span ${numKeys}`));
  const map = document.getElementById("map");
  map.style.gridTemplateColumns = `max-content repeat(${numKeys}, ${side}px)`;
  map.style.gridTemplateRows = `repeat(${numQueries}, ${side}px) max-content`;
  map.onmouseleave = () => point({ query: null, key: null });
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
  maps.weights.forEach((ofLayer, l) => {
    children.push(title(`layer ${l + 1}`));
    ofLayer.forEach((rows, h) => {
      const canvas = element("canvas", { width: maps.keys.length, height: maps.queries.length });
      const pen = canvas.getContext("2d");
      pen.fillStyle = heat;
      rows.forEach((row, query) => row.forEach((weight, key) => {
        pen.globalAlpha = weight / 1000;
        pen.fillRect(key, query, 1, 1);
      }));
      const isShown = l + 1 === layer && heads.includes(h + 1);
      const button = choice(
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

// What is pointed at, else what is kept, stands out in all pictures, and is put into words.
function drawPointed() {
  const { maps, kept } = view;
  const at = pointed.query !== null || pointed.key !== null ? pointed : kept;
  const isNone = at.query === null && at.key === null;
  const among = (query, key) => (at.query === null || at.query === Number(query))
    && (at.key === null || at.key === Number(key));
  for (const line of document.querySelectorAll("#lines line")) {
    line.style.display = among(line.dataset.query, line.dataset.key) ? "" : "none";
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
    const columns = at.key === null ? `2 / span ${maps.keys.length}` : at.key + 2;
    document.getElementById("map").append(
      placed(element("div", { className: "band" }), rows, columns),
    );
  }
  document.getElementById("readout").textContent = isNone ? "" : inWords(at);
}

function inWords(at) {
  const { maps, layer, heads } = view;
  const number = (weight) => weight.toFixed(2);
  if (at.query !== null && at.key !== null) {
    const each = heads.map((head) => {
      const weight = maps.weights[layer - 1][head - 1][at.query][at.key] / 1000;
      return `head ${head} ${number(weight)}`;
    });
    return `“${maps.queries[at.query]}” attends to “${maps.keys[at.key]}”: ${each.join(", ")}`;
  }
  const pieces = at.key === null ? maps.keys : maps.queries;
  const strongest = pieces
    .map((piece, i) => [piece, at.key === null ? meanWeight(at.query, i) : meanWeight(i, at.key)])
    .filter(([, weight]) => weight >= LEAST_WEIGHT)
    .sort(([, one], [, other]) => other - one)
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
  pointed = { query: null, key: null };
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
  Object.assign(paragraph, { textContent: data[side].text, lang: data[side].language });
}
document.getElementById("model").textContent = data.note;
document.title = `Attention: ${data.source.text}`;
addEventListener("hashchange", draw);
addEventListener("keydown", (event) => {
  if (event.key === "Escape") show({ kept: { query: null, key: null } });
});
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", drawOverview);
draw();
