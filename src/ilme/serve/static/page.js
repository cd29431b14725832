// The page: a recording goes to the service once; sliders rank its cached hypotheses again, here.
const $ = (id) => document.getElementById(id);
let recording = null, answer = null, stopSpeaking = null;

const headers = () => ($("key").value ? { Authorization: `Bearer ${$("key").value}` } : {});
const say = (text, error = false) => { $("state").textContent = text; $("state").classList.toggle("error", error); };

async function listModels() {
  const found = await fetch("/v1/models", { headers: headers() });
  $("key-box").hidden = found.status !== 401 && !$("key").value;
  if (!found.ok) return say("This service asks for a key.", found.status !== 401);
  const { data } = await found.json();
  $("model").replaceChildren(...data.map((m) => new Option(m.id, m.id)));
}

async function listen(blob, name) {
  recording = { blob, name };
  say("Listening …");
  const form = new FormData();
  form.append("file", blob, name);
  form.append("model", $("model").value);
  form.append("hotwords", $("names").value);
  try {
    const found = await fetch("/v1/ilme/compare", { method: "POST", body: form, headers: headers() });
    const body = await found.json();
    if (!found.ok) throw new Error(body.error.message);
    answer = body;
  } catch (error) {
    return say(error.message, true);
  }
  if ($("player").src) URL.revokeObjectURL($("player").src);
  $("player").src = URL.createObjectURL(blob);
  $("result").hidden = false;
  $("why").hidden = true;
  $("again").disabled = false;
  reset();
  say(`Done: ${answer.seconds.toFixed(1)} s of audio.`);
}

// --- ranking -----------------------------------------------------------------------------------------------------

// score(y) = log P(y|x) + λ log P_T(y) − μ log P_S(y) + β |y| + κ bonus, over (|y| + 1)^α where the search does that
function score(c, w) {
  const sum = c.asr + w.lm * c.lm - w.subtracted * c.subtracted + w.length * c.length + w.phrases * c.phrases;
  return sum / (c.length + 1) ** answer.exponent;
}

function reset() {
  $("lm").value = answer.weights.lm;
  $("ilm").value = answer.weights.subtracted;
  rank(true);
}

function rank(tuned = false) {
  $("lm-value").textContent = Number($("lm").value).toFixed(2);
  $("ilm-value").textContent = Number($("ilm").value).toFixed(2);
  const weights = { ...answer.weights, lm: Number($("lm").value), subtracted: Number($("ilm").value) };
  const chosen = answer.windows.map((w) => {
    if (!w.candidates.length) return { text: "", words: [] };
    const best = tuned ? w.candidates[0] : w.candidates.reduce((a, b) => (score(b, weights) > score(a, weights) ? b : a));
    return { text: best.text, words: best === w.candidates[0] ? w.words : [] };
  });
  const plain = answer.windows.flatMap((w) => w.baseline.split(/\s+/).filter(Boolean));
  const fused = chosen.flatMap((c) => c.text.split(/\s+/).filter(Boolean).map((text, k) => ({ text, about: c.words[k] })));
  const [left, right] = changes(plain, fused.map((w) => w.text));
  show($("plain"), plain.map((text, k) => ({ text, changed: left[k] })));
  show($("fused"), fused.map((w, k) => ({ ...w, changed: right[k] })));
}

// Which words of two texts are not in their longest common subsequence.
function changes(a, b) {
  const long = Array.from({ length: a.length + 1 }, () => new Uint32Array(b.length + 1));
  for (let i = a.length - 1; i >= 0; i--)
    for (let j = b.length - 1; j >= 0; j--)
      long[i][j] = a[i] === b[j] ? long[i + 1][j + 1] + 1 : Math.max(long[i + 1][j], long[i][j + 1]);
  const left = a.map(() => true), right = b.map(() => true);
  for (let i = 0, j = 0; i < a.length && j < b.length; )
    if (a[i] === b[j]) { left[i++] = false; right[j++] = false; }
    else if (long[i + 1][j] >= long[i][j + 1]) i++;
    else j++;
  return [left, right];
}

function show(place, words) {
  place.replaceChildren(...words.flatMap((w) => {
    const box = document.createElement(w.about ? "button" : "span");
    if (w.about) {
      box.type = "button";
      box.addEventListener("click", () => explain(w.about));
      if (w.about.confidence < 0.6) box.classList.add("unsure");
    }
    if (w.changed) box.classList.add("changed");
    box.textContent = w.text;
    return [box, " "];
  }));
  if (!words.length) place.textContent = "(nothing is said)";
}

function explain(word) {
  if (word.start !== undefined) { $("player").currentTime = word.start; $("player").play().catch(() => {}); }
  const w = answer.weights;
  const rows = [["the model", word.asr], ["the domain's LM, times λ", w.lm * word.lm],
    ["the internal LM, times −μ", -w.subtracted * word.subtracted], ["listed names", w.phrases * word.phrases]];
  const title = document.createElement("p"), table = document.createElement("table");
  const when = word.start === undefined ? "" : ` at ${word.start.toFixed(2)} s, confidence ${(100 * word.confidence).toFixed(0)} %`;
  title.textContent = `“${word.word}”${when}. What each gives it, in nats:`;
  for (const [name, value] of rows) {
    const row = table.insertRow();
    row.insertCell().textContent = name;
    const cell = row.insertCell();
    cell.textContent = value.toFixed(2);
    cell.className = "number";
  }
  $("why").replaceChildren(title, table);
  $("why").hidden = false;
}

// --- the microphone --------------------------------------------------------------------------------------------------

async function speak() {
  if (stopSpeaking) return stopSpeaking();
  let stream;
  try { stream = await navigator.mediaDevices.getUserMedia({ audio: true }); }
  catch (error) { return say(`The microphone cannot be used: ${error.message}`, true); }
  const context = new AudioContext(), pieces = [];
  await context.audioWorklet.addModule("/page/recorder.js");
  const node = new AudioWorkletNode(context, "recorder");
  node.port.onmessage = (event) => pieces.push(event.data);
  context.createMediaStreamSource(stream).connect(node);
  $("speak").setAttribute("aria-pressed", "true");
  $("speak").textContent = "Stop";
  say("Speak now …");
  stopSpeaking = () => {
    stopSpeaking = null;
    stream.getTracks().forEach((track) => track.stop());
    context.close();
    $("speak").setAttribute("aria-pressed", "false");
    $("speak").textContent = "Speak";
    listen(wave(pieces, context.sampleRate), "microphone.wav");
  };
}

// 16-bit mono WAV.
function wave(pieces, rate) {
  const count = pieces.reduce((n, p) => n + p.length, 0), view = new DataView(new ArrayBuffer(44 + 2 * count));
  const text = (at, s) => [...s].forEach((c, k) => view.setUint8(at + k, c.charCodeAt(0)));
  text(0, "RIFF"); view.setUint32(4, 36 + 2 * count, true); text(8, "WAVEfmt ");
  view.setUint32(16, 16, true); view.setUint16(20, 1, true); view.setUint16(22, 1, true);
  view.setUint32(24, rate, true); view.setUint32(28, 2 * rate, true); view.setUint16(32, 2, true);
  view.setUint16(34, 16, true); text(36, "data"); view.setUint32(40, 2 * count, true);
  let at = 44;
  for (const piece of pieces)
    for (const x of piece) { view.setInt16(at, Math.max(-1, Math.min(1, x)) * 32767, true); at += 2; }
  return new Blob([view], { type: "audio/wav" });
}

$("file").addEventListener("change", () => { const [f] = $("file").files; if (f) listen(f, f.name); $("file").value = ""; });
$("speak").addEventListener("click", speak);
$("again").addEventListener("click", () => recording && listen(recording.blob, recording.name));
$("model").addEventListener("change", () => recording && listen(recording.blob, recording.name));
$("key").addEventListener("change", listModels);
$("lm").addEventListener("input", () => rank());
$("ilm").addEventListener("input", () => rank());
$("reset").addEventListener("click", reset);
$("form").addEventListener("submit", (event) => event.preventDefault());
const drop = $("drop");
for (const kind of ["dragover", "dragleave", "drop"])
  drop.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragover");
    if (kind === "drop" && event.dataTransfer.files[0]) listen(event.dataTransfer.files[0], event.dataTransfer.files[0].name);
  });
listModels().then(() => { document.documentElement.dataset.ready = "yes"; });
