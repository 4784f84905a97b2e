// The page of tfm serve: translates while one types, and shows other translations from a word on.
"use strict";

const TYPING_PAUSE = 300;  // milliseconds without typing before a translation
const MIN_WEIGHT = 0.02;   // smaller weights are not named

const byId = (id) => document.getElementById(id);
const [input, output, from, to] = ["input", "output", "from", "to"].map(byId);

// The lowest confidences, from 0 to 1, of their words: expected chrF of a calibrated model.
const CONFIDENCES = [[0.65, "high"], [0.45, "medium"], [0, "low"]];

const WORDS = new Intl.Segmenter(undefined, { granularity: "word" });

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
  const all = {
    ...fields, source: from.value, target: to.value, api_key: byId("key").value,
    glossary: JSON.stringify(Object.fromEntries(glossary())),
  };
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
  focusable(output.querySelector(".word"));
  output.classList.remove("old");
  byId("copy").disabled = false;
  const seconds = ((performance.now() - started) / 1000).toFixed(1);
  const detected = answer.detectedLanguage;
  const language = detected ? `, from ${nameOf(detected.language)}` : "";
  const missing = (answer.missingTerms ?? []).map(([term]) => ` “${term}” is not as in the glossary.`);
  say(`Translated in ${seconds} s${language}. Choose a word to see other translations from there on.`
    + missing.join("") + (answer.repeated ? " The translation repeats itself: do not rely on it." : ""));
  const sentences = output.querySelectorAll(".sentence");
  if (sentences.length === 1) await explain(sentences[0], null);
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

// A translated sentence, whose words can be chosen; or white space.
function sentence({ source, translation, is_sentence }) {
  if (!is_sentence) return document.createTextNode(translation);
  const span = element("span", { className: "sentence" });
  span.dataset.source = source;
  fill(span, translation);
  return span;
}

// Put a translation into a sentence. One word of all is in the order of the tab key; arrows move on.
function fill(span, translation) {
  span.replaceChildren(...[...WORDS.segment(translation)].map(({ segment, index, isWordLike }) => {
    if (!isWordLike) return document.createTextNode(segment);
    const word = element("span", { className: "word", textContent: segment, tabIndex: -1, role: "button" });
    word.setAttribute("aria-expanded", "false");
    word.dataset.start = index;
    return word;
  }));
}

const words = () => [...output.querySelectorAll(".word")];

function focusable(word) {
  words().forEach((each) => { each.tabIndex = each === word ? 0 : -1; });
}

function moveAmongWords(event) {
  const all = words();
  const at = all.indexOf(event.target);
  const isRightToLeft = getComputedStyle(output).direction === "rtl";
  const steps = { ArrowRight: isRightToLeft ? -1 : 1, ArrowLeft: isRightToLeft ? 1 : -1 };
  if (event.key === "Enter" || event.key === " ") attempt(() => choose(event.target));
  else if (event.key in steps) all[at + steps[event.key]]?.focus();
  else return;
  event.preventDefault();
}

const choose = (word) => explain(word.parentElement, Number(word.dataset.start));

function hideDetails() {
  underway.explain?.abort();
  byId("details").hidden = byId("others").hidden = true;
  mark(null);
}

// Mark the word from which on other translations of its sentence are shown.
function mark(word) {
  words().forEach((each) => each.setAttribute("aria-expanded", each === word));
}

const wordAt = (span, start) => [...span.children].find((each) => Number(each.dataset.start) === start);

// Show the translations of a sentence that are the same before a position, and its attention.
async function explain(span, start) {
  const { source } = span.dataset;
  const translation = span.textContent;
  const prefix = translation.slice(0, start);
  const word = wordAt(span, start);
  mark(word);
  const fields = { q: source, translation, ...(start === null ? {} : { prefix }) };
  explained = await post("explain", "explain", fields);
  chosen = null;
  byId("others-title").textContent =
    prefix && word ? `Other translations from “${word.textContent}” on` : "Other translations";
  byId("choices").replaceChildren(...explained.translations.map((each) => choice(span, start, each)));
  fillAttention();
  byId("details").hidden = byId("others").hidden = false;
}

// A button that puts a translation into a sentence.
function choice(span, start, { text, score, confidence }) {
  const shown = confidence === null
    ? `score ${score.toFixed(2).replace("-", "−")}` : `confidence: ${wordOf(confidence)}`;
  const button = element("button", { type: "button", lang: to.value.replace("_", "-"), dir: "auto" }, [
    element("span", { className: "same", textContent: text.slice(0, start) }), text.slice(start),
    element("small", { textContent: shown }),
  ]);
  button.setAttribute("aria-pressed", text === span.textContent);
  button.onclick = () => {
    fill(span, text);
    focusable(wordAt(span, start) ?? span.querySelector(".word"));
    attempt(async () => {
      await explain(span, start);
      byId("choices").querySelector("[aria-pressed=true]")?.focus();
    });
  };
  return element("li", {}, [button]);
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
  showPair();
}

// Show what depends on both languages.
function showPair() {
  byId("swap").disabled = !canSwap();
  byId("glossary-pair").textContent = `${nameOf(from.value)} to ${nameOf(to.value)}`;
  byId("glossary").value = stored() ?? "";
  if (byId("glossary").value) byId("glossary-field").open = true;
}

const storageKey = () => `glossary ${from.value} ${to.value}`;

// The stored glossary; browsers may forbid to store it, so that it is lost with the page.
function stored(text) {
  try {
    if (text !== undefined) localStorage.setItem(storageKey(), text);
    return localStorage.getItem(storageKey());
  } catch {
    return null;
  }
}

// The pairs of a term and its translation in the glossary.
function glossary() {
  return byId("glossary").value.split("\n").flatMap((line, index) => {
    if (!line.trim() || (line.startsWith("#") && !line.includes("="))) return [];
    // Lines of files have tabs, and a comment in the third column.
    const columns = line.includes("\t") ? line.split("\t", 2) : line.split("=");
    const [term, ...rest] = columns.map((each) => each.trim());
    const translation = rest.join("=");
    if (term && translation) return [[term, translation]];
    throw new Error(`Line ${index + 1} of the glossary is wrong: write term = translation.`);
  });
}

const targetsOf = (code) => languages.find((each) => each.code === code)?.targets ?? [];
const canSwap = () => targetsOf(to.value).includes(from.value);

// Swap the languages; the translation becomes the text.
async function swap() {
  const source = from.value;
  from.value = to.value;
  fillTargets();
  to.value = source;
  showPair();
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
to.onchange = () => { showPair(); attempt(translate); };
byId("glossary").onchange = () => {
  stored(byId("glossary").value);
  attempt(translate);
};
output.onclick = ({ target }) => {
  if (target.matches(".word") && getSelection().isCollapsed) attempt(() => choose(target));
};
output.onkeydown = moveAmongWords;
output.addEventListener("focusin", ({ target }) => focusable(target));
byId("others").onkeydown = ({ key }) => {
  if (key !== "Escape") return;
  output.querySelector(".word[tabindex='0']")?.focus();
  hideDetails();
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
