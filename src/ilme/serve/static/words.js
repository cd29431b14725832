// Two texts side by side: ranked by the weights of the sliders, changed words marked, each word with its reasons.
import { $ } from "/page/service.js";

let answer = null, timed = [];

// Shows an answer; whether the domain changes anything.
export function show(found, blob) {
  answer = found;
  if ($("player").src) URL.revokeObjectURL($("player").src);
  $("player").src = URL.createObjectURL(blob);
  $("result").hidden = false;
  for (const [name, weight] of [["lm", answer.weights.lm], ["ilm", answer.weights.subtracted]])
    $(name).max = Math.max(2, Math.ceil(2 * weight));
  reset();
  return document.querySelector(".sides .changed") !== null;
}

// score(y) = log P(y|x) + λ log P_T(y) − μ log P_S(y) + β |y| + κ bonus, over (|y| + 1)^α where the search does that
function score(c, w) {
  const sum = c.asr + w.lm * c.lm - w.subtracted * c.subtracted + w.length * c.length + w.phrases * c.phrases;
  return sum / (c.length + 1) ** answer.exponent;
}

export function reset() {
  $("lm").value = answer.weights.lm;
  $("ilm").value = answer.weights.subtracted;
  rank(true);
}

export function rank(tuned = false) {
  const weights = { ...answer.weights, lm: Number($("lm").value), subtracted: Number($("ilm").value) };
  for (const name of ["lm", "ilm"]) $(`${name}-value`).textContent = Number($(name).value).toFixed(2);
  $("why").hidden = true;
  const fused = answer.windows.flatMap((w) => {
    if (!w.candidates.length) return [];
    const best = tuned ? w.candidates[0] : w.candidates.reduce((a, b) => (score(b, weights) > score(a, weights) ? b : a));
    const texts = split(best.text);
    if (best === w.candidates[0]) return texts.map((text, k) => ({ text, about: w.words[k] }));
    const places = matches(texts, w.words.map((word) => word.word));
    return texts.map((text, k) => {  // a word that the tuned weights chose, too, was said at the same time
      const same = w.words[places[k]];
      return { text, about: same && { word: text, start: same.start, end: same.end } };
    });
  });
  const plain = answer.windows.flatMap((w) => split(w.baseline)).map((text) => ({ text }));
  const places = matches(plain.map((w) => w.text), fused.map((w) => w.text)), kept = new Set(places);
  plain.forEach((w, k) => { w.changed = places[k] === undefined; });
  fused.forEach((w, k) => { w.changed = !kept.has(k); });
  write($("plain"), plain);
  write($("fused"), fused);
}

const split = (text) => text.split(/\s+/).filter(Boolean);

// For each word of a, where it is in b, along their longest common subsequence; undefined where it is not.
function matches(a, b) {
  const long = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      long[i][j] = a[i] === b[j] ? long[i + 1][j + 1] + 1 : Math.max(long[i + 1][j], long[i][j + 1]);
  const found = a.map(() => undefined);
  for (let i = 0, j = 0; i < a.length && j < b.length; )
    if (a[i] === b[j]) found[i++] = j++;
    else if (long[i + 1][j] >= long[i][j + 1]) i++;
    else j++;
  return found;
}

function write(place, words) {
  const boxes = words.map((w) => {
    const box = document.createElement(w.about ? "button" : w.changed ? "mark" : "span");
    box.textContent = w.text;
    if (w.changed) box.classList.add("changed");
    if (!w.about) return box;
    box.type = "button";
    box.tabIndex = -1;
    box.about = w.about;
    const { start, confidence } = w.about, notes = [w.text];
    if (w.changed) notes.push("changed");
    if (start !== undefined) notes.push(`at ${start.toFixed(1)} seconds`);
    if (confidence !== undefined) notes.push(`confidence ${percent(confidence)}`);
    if (confidence < 0.6) { box.classList.add("unsure"); notes.push("unsure"); }
    box.setAttribute("aria-label", notes.join(", "));
    box.title = notes.slice(1).join(", ");
    return box;
  });
  place.replaceChildren(...boxes.flatMap((box) => [box, " "]));
  if (!words.length) place.textContent = "(nothing is said)";
  if (place !== $("fused")) return;
  timed = boxes.filter((box) => box.about?.start !== undefined);
  const first = place.querySelector("button");
  if (first) first.tabIndex = 0;
}

const percent = (share) => `${(100 * share).toFixed(0)} %`;

function explain(word) {
  if (word.start !== undefined) { $("player").currentTime = word.start; $("player").play().catch(() => {}); }
  const title = document.createElement("p"), table = document.createElement("table");
  const when = word.start === undefined ? "" : ` from ${word.start.toFixed(2)} to ${word.end.toFixed(2)} s`;
  const sure = word.confidence === undefined ? "" : `, confidence ${percent(word.confidence)}`;
  title.textContent = `“${word.word}”${when}${sure}.`;
  $("why").replaceChildren(title);
  $("why").hidden = false;
  if (word.asr === undefined) {
    title.textContent += " The reasons are known of the tuned weights' choice: press “As tuned”.";
    return;
  }
  title.textContent += " What each gives it, in nats:";
  const w = answer.weights;
  const rows = [["the model", 1, word.asr], ["the domain's LM", w.lm, word.lm],
    ["the internal LM", -w.subtracted, word.subtracted], ["listed names", w.phrases, word.phrases]];
  const head = table.createTHead().insertRow();
  for (const name of ["", "weight", "log P", "gives"]) {
    const cell = document.createElement("th");
    cell.scope = "col";
    cell.textContent = name;
    head.append(cell);
  }
  const body = table.createTBody();
  for (const [name, weight, value] of rows) {
    const row = body.insertRow(), first = document.createElement("th");
    first.scope = "row";
    first.textContent = name;
    row.append(first);
    for (const number of [weight, value, weight * value]) row.insertCell().textContent = (number + 0).toFixed(2).replace("-", "−");
  }
  $("why").append(table);
}

export function startWords() {
  const place = $("fused");
  place.addEventListener("click", (event) => {
    const box = event.target.closest("button");
    if (!box) return;
    for (const other of place.querySelectorAll("button")) other.tabIndex = other === box ? 0 : -1;
    explain(box.about);
  });
  place.addEventListener("keydown", (event) => {
    const all = [...place.querySelectorAll("button")], at = all.indexOf(document.activeElement);
    const to = { ArrowRight: at + 1, ArrowDown: at + 1, ArrowLeft: at - 1, ArrowUp: at - 1, Home: 0, End: all.length - 1 }[event.key];
    if (to === undefined || !all[to]) return;
    event.preventDefault();
    all.forEach((box, k) => { box.tabIndex = k === to ? 0 : -1; });
    all[to].focus();
  });
  $("player").addEventListener("timeupdate", () => {
    const now = $("player").currentTime;
    for (const box of timed) box.classList.toggle("playing", !$("player").paused && box.about.start <= now && now < box.about.end);
  });
}
