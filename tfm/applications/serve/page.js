// The page of tfm serve: translates while one types, and explains a chosen sentence.
"use strict";

const TYPING_PAUSE = 300;  // milliseconds without typing before a translation
const MIN_WEIGHT = 0.02;   // smaller weights are not named

const byId = (id) => document.getElementById(id);
const [input, output, from, to] = ["input", "output", "from", "to"].map(byId);

// The lowest confidences, from 0 to 1, of their words: expected chrF of a calibrated model.
const CONFIDENCES = [[0.65, "high"], [0.45, "medium"], [0, "low"]];

let languages = [];
let charLimit = Infinity;
let timer;
// The requests underway; a new one aborts the old one of its kind.
const underway = {};
let explained = null;  // the answer to the last explanation
let chosen = null;     // the word whose attention is shown: { side, index }

async function post(kind, path, fields) {
  underway[kind]?.abort();
  const controller = underway[kind] = new AbortController();
  const all = { ...fields, source: from.value, target: to.value, api_key: byId("key").value };
  const body = fields.file ? new FormData() : JSON.stringify(all);
  if (fields.file) Object.entries(all).forEach(([name, value]) => body.append(name, value));
  const headers = fields.file ? {} : { "Content-Type": "application/json" };
  const answer = await fetch(path, { method: "POST", headers, body, signal: controller.signal });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error);
  return content;
}

function say(message, isWrong = false) {
  byId("status").textContent = message;
  byId("status").classList.toggle("wrong", isWrong);
}

// Run a request; one that a newer one replaced is no failure.
async function attempt(work) {
  try {
    await work();
  } catch (error) {
    if (error.name === "AbortError") return;
    output.classList.remove("old");
    say(error instanceof TypeError ? "The server does not answer." : error.message, true);
  }
}

function element(name, properties, children = []) {
  const created = Object.assign(document.createElement(name), properties);
  created.append(...children);
  return created;
}

async function translate() {
  hideDetails();
  const isTooLong = showCount();
  if (isTooLong || !input.value.trim()) {
    underway.translate?.abort();
    output.classList.remove("old");
    output.replaceChildren();
    byId("copy").disabled = true;
    say(isTooLong ? "The text is too long: translate it in parts." : "", isTooLong);
    return;
  }
  output.classList.add("old");
  say("Translating…");
  const started = performance.now();
  const answer = await post("translate", "translate", { q: input.value, parts: true });
  output.lang = to.value.replace("_", "-");
  output.replaceChildren(...answer.parts.map(sentence));
  output.classList.remove("old");
  byId("copy").disabled = false;
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  const detected = answer.detectedLanguage;
  const language = detected ? `, from ${nameOf(detected.language)}` : "";
  say(`Translated in ${seconds} s${language}. Choose a sentence to see other translations.`);
  const sentences = output.querySelectorAll(".sentence");
  if (sentences.length === 1) await explain(sentences[0]);
}

// Show the number of characters; return whether it is above the limit.
function showCount() {
  const number = [...input.value].length;  // of code points, as the server counts
  const isTooLong = number > charLimit;
  byId("count").textContent = `${number.toLocaleString()} of ${charLimit.toLocaleString()} characters`;
  byId("count").classList.toggle("wrong", isTooLong);
  return isTooLong;
}

async function translateFile() {
  const [file] = byId("file").files;
  if (!file) return;
  byId("download").hidden = true;
  say(`Translating ${file.name}…`);
  const { translatedFileUrl } = await post("file", "translate_file", { file });
  const { pathname } = new URL(translatedFileUrl);
  const name = decodeURIComponent(pathname.split("/").pop());
  Object.assign(byId("download"), {
    // Relative, because a proxy may have another address.
    href: pathname.slice(pathname.indexOf("download_file")), textContent: `Download ${name}`,
    hidden: false,
  });
  say(`${file.name} is translated; the translation is kept for ten minutes.`);
}

// A translated sentence, which can be chosen; or white space.
function sentence({ source, translation, is_sentence }) {
  if (!is_sentence) return document.createTextNode(translation);
  const span = element("span", { className: "sentence", textContent: translation, tabIndex: 0 });
  span.setAttribute("role", "button");
  span.setAttribute("aria-pressed", "false");
  span.dataset.source = source;
  span.onclick = () => {
    if (getSelection().isCollapsed) attempt(() => explain(span));
  };
  span.onkeydown = (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    event.preventDefault();
    attempt(() => explain(span));
  };
  return span;
}

function hideDetails() {
  underway.explain?.abort();
  byId("details").hidden = true;
}

// Show the n-best translations of a sentence, and the attention of the one in the text.
async function explain(span) {
  for (const each of output.querySelectorAll(".sentence")) {
    each.setAttribute("aria-pressed", each === span);
  }
  const { source } = span.dataset;
  const answer = await post("explain", "explain", { q: source, translation: span.textContent });
  explained = answer;
  chosen = null;
  byId("sentence").textContent = source;
  byId("choices").replaceChildren(...answer.translations.map((each) => {
    const isShown = each.text === span.textContent;
    const score = `score ${each.score.toFixed(2).replace("-", "−")}`;
    const shown = each.confidence === null ? score : `confidence: ${wordOf(each.confidence)}`;
    const button = element("button", { type: "button", lang: to.value.replace("_", "-"), dir: "auto" }, [
      each.text, element("small", { textContent: shown }),
    ]);
    button.setAttribute("aria-pressed", isShown);
    button.onclick = () => {
      span.textContent = each.text;
      attempt(async () => {
        await explain(span);
        byId("choices").querySelector("[aria-pressed=true]")?.focus();
      });
    };
    return element("li", {}, [button]);
  }));
  fillAttention();
  byId("details").hidden = false;
}

const wordOf = (confidence) => CONFIDENCES.find(([least]) => confidence >= least)[1];

function fillAttention() {
  const numLayers = explained.weights.length;
  const numHeads = explained.weights[0].length;
  const number = (count) => Array.from({ length: count }, (_, index) => index);
  const layer = byId("layer").value;
  const head = byId("head").value;
  byId("layer").replaceChildren(...number(numLayers).map((index) => new Option(index + 1, index)));
  byId("head").replaceChildren(
    new Option("mean", ""), ...number(numHeads).map((index) => new Option(index + 1, index)),
  );
  // The last layer but one aligns words best (Garg et al. 2019).
  byId("layer").value = layer && layer < numLayers ? layer : Math.max(0, numLayers - 2);
  byId("head").value = head && head < numHeads ? head : "";
  for (const side of ["target", "source"]) {
    byId(`${side}-words`).replaceChildren(...explained[side].map((word, index) => {
      const button = element("button", { type: "button", textContent: word, dir: "auto" });
      button.onclick = () => {
        const isChosen = chosen !== null && chosen.side === side && chosen.index === index;
        chosen = isChosen ? null : { side, index };
        drawAttention();
      };
      return button;
    }));
  }
  drawAttention();
}

// The attention of a word of the translation to one of the text, from 0 to 1.
function weightOf(query, key) {
  const heads = explained.weights[byId("layer").value];
  const head = byId("head").value;
  const shown = head === "" ? heads : [heads[head]];
  return shown.reduce((sum, rows) => sum + rows[query][key], 0) / shown.length / 1000;
}

function drawAttention() {
  for (const side of ["target", "source"]) {
    [...byId(`${side}-words`).children].forEach((button, index) => {
      button.setAttribute("aria-pressed", chosen?.side === side && chosen.index === index);
      const weight = chosen && chosen.side !== side ? weightBetween(index) : 0;
      button.style.setProperty("--weight", weight.toFixed(3));
    });
  }
  byId("readout").textContent = chosen ? describe() : "";
}

// The attention between the chosen word and a word of the other side.
function weightBetween(index) {
  return chosen.side === "target" ? weightOf(chosen.index, index) : weightOf(index, chosen.index);
}

function describe() {
  const others = explained[chosen.side === "target" ? "source" : "target"];
  const strongest = others.map((word, index) => [word, weightBetween(index)])
    .filter(([, weight]) => weight >= MIN_WEIGHT)
    .sort(([, a], [, b]) => b - a)
    .slice(0, 5)
    .map(([word, weight]) => `“${word}” ${weight.toFixed(2)}`);
  const verb = chosen.side === "target" ? "attends to" : "is attended to by";
  return `“${explained[chosen.side][chosen.index]}” ${verb} ${strongest.join(", ") || "nothing much"}`;
}

const nameOf = (code) => languages.find((each) => each.code === code)?.name || code;

function fillTargets() {
  const sources = languages.filter((each) => from.value === "auto" || each.code === from.value);
  const codes = [...new Set(sources.flatMap((each) => each.targets))];
  const before = to.value;
  to.replaceChildren(...codes.map((code) => new Option(nameOf(code), code)));
  if (codes.includes(before)) to.value = before;
  byId("swap").disabled = !canSwap();
}

const targetsOf = (code) => languages.find((each) => each.code === code)?.targets ?? [];
const canSwap = () => targetsOf(to.value).includes(from.value);

// Swap the languages; the translation becomes the text.
async function swap() {
  const source = from.value;
  from.value = to.value;
  fillTargets();
  to.value = source;
  byId("swap").disabled = !canSwap();
  if (output.textContent) input.value = output.textContent;
  await translate();
}

function modelLine({ source, target, name, license }) {
  const direction = `${nameOf(source)} to ${nameOf(target)}: ${name}`;
  return element("li", { textContent: license ? `${direction} (${license})` : direction });
}

async function start() {
  document.querySelector("main").hidden = false;
  const [known, settings] = await Promise.all(
    ["languages", "frontend/settings"].map(async (path) => (await fetch(path)).json()),
  );
  languages = known;
  byId("key-field").hidden = !settings.keyRequired;
  charLimit = settings.charLimit;
  byId("file").accept = settings.supportedFilesFormat.join(",");
  byId("models").replaceChildren(...settings.models.map(modelLine));
  const sources = languages.filter((each) => each.targets.length);
  from.replaceChildren(...sources.map((each) => new Option(each.name, each.code)));
  if (settings.detection) from.append(new Option("Detect language", "auto"));
  fillTargets();
  showCount();
  if (input.value) await translate();
}

input.oninput = () => {
  showCount();
  clearTimeout(timer);
  timer = setTimeout(() => attempt(translate), TYPING_PAUSE);
};
from.onchange = () => { fillTargets(); attempt(translate); };
to.onchange = () => {
  byId("swap").disabled = !canSwap();
  attempt(translate);
};
byId("key").onchange = () => attempt(translate);
byId("swap").onclick = () => attempt(swap);
byId("file").onchange = () => attempt(translateFile);
byId("layer").onchange = byId("head").onchange = drawAttention;
byId("copy").onclick = () => attempt(async () => {
  await navigator.clipboard.writeText(output.textContent);
  say("Copied.");
});
attempt(start);
