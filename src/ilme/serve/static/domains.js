// The domains: which there are, and how a new one is made of pasted text.
import { $, ask, say } from "/page/service.js";

const PATH = "/v1/ilme/adaptations", PAUSE = 700;  // milliseconds between two looks
let running = null, megabytes = 20, changed = () => {};

export async function listModels() {
  try {
    const { data } = await ask("/v1/models");
    $("key-box").hidden = !$("key").value;
    const before = $("model").value;
    $("model").replaceChildren(...data.map((m) => new Option(m.id, m.id)));
    if (data.some((m) => m.id === before)) $("model").value = before;
    await listRuns();
    if ($("state").classList.contains("error")) say("Choose a recording, or speak.");
  } catch (error) {
    $("key-box").hidden = error.status !== 401;
    if (error.status === 401 && !$("key").value) {
      say("This service asks for a key.");
      $("key").focus();
    }
    else say(error.message, true);
  }
}

async function listRuns() {
  const found = await ask(PATH);
  $("make").hidden = !found.enabled;
  megabytes = found.megabytes;
  const going = found.data.find((run) => run.state === "running");
  if (going && !running) follow(going);
}

export async function startDomains(onChange) {
  changed = onChange;
  $("make").addEventListener("submit", (event) => { event.preventDefault(); begin(); });
  $("cancel").addEventListener("click", cancel);
  $("text-file").addEventListener("change", read);
  await listModels();
}

async function read() {
  const texts = await Promise.all([...$("text-file").files].map((file) => file.text()));
  $("text").value = [$("text").value, ...texts].filter(Boolean).join("\n");
  $("text-file").value = "";
}

function tell(text, error = false) {
  $("made").textContent = text;
  $("made").classList.toggle("error", error);
}

async function begin() {
  const wanted = { name: $("name").value.trim(), text: $("text").value, model: $("model").value };
  const missing = !wanted.text.trim() ? ["text", "Paste text of the domain first."]
    : !wanted.name ? ["name", "Give the domain a name."] : null;
  if (missing) { tell(missing[1], true); return $(missing[0]).focus(); }
  const body = JSON.stringify(wanted);
  if (new Blob([body]).size > 1e6 * megabytes) return tell(`At most ${megabytes} MB of text are taken.`, true);
  try {
    follow(await ask(PATH, { method: "POST", body, headers: { "Content-Type": "application/json" } }));
  } catch (error) {
    tell(error.message, true);
  }
}

async function follow(run) {
  running = run.id;
  busy(true);
  try {
    while (run.state === "running") {
      write(run);
      await new Promise((done) => setTimeout(done, PAUSE));
      run = await ask(`${PATH}/${run.id}`);
    }
    if (run.state === "done") await choose(run);
    write(run);
  } catch (error) {
    tell(error.message, true);
  } finally {
    running = null;
    busy(false);
  }
}

async function choose(run) {
  await listModels();
  $("model").value = run.model;
  $("name").value = $("text").value = "";
  changed();
}

function write(run) {
  const last = run.lines.at(-1), after = `after ${run.seconds.toFixed(0)} s`;
  tell({
    running: `${run.model} is being made${last ? `: ${last}` : " …"}`,
    done: `${run.model} is ready ${after}, and chosen above.`,
    failed: `${run.model} could not be made: ${run.error}`,
    cancelled: `${run.model} was cancelled ${after}; nothing of it is left.`,
  }[run.state], run.state === "failed");
  $("log").replaceChildren(...run.lines.map((line) => Object.assign(document.createElement("li"), { textContent: line })));
  $("log-box").hidden = !run.lines.length;
}

function busy(on) {
  const had = document.activeElement;
  $("progress").hidden = $("cancel").hidden = !on;
  $("adapt").disabled = on;
  if (on && had === $("adapt")) $("cancel").focus();
  if (!on && had === $("cancel")) $("adapt").focus();
}

async function cancel() {
  if (!running) return;
  try { await ask(`${PATH}/${running}`, { method: "DELETE" }); }
  catch (error) { tell(error.message, true); }
}
