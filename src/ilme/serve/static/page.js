// The page: a recording goes to the service once; sliders rank its cached hypotheses again, here.
import { $, ask, say } from "/page/service.js";
import { startDomains, listModels } from "/page/domains.js";
import { speak } from "/page/microphone.js";
import { show, rank, reset, startWords } from "/page/words.js";

let recording = null, asking = null;

async function listen(blob, name) {
  if (asking) asking.abort();
  const mine = (asking = new AbortController());
  recording = { blob, name };
  say("Listening …");
  $("result").setAttribute("aria-busy", "true");
  const form = new FormData();
  form.append("file", blob, name);
  form.append("model", $("model").value);
  form.append("hotwords", $("names").value);
  try {
    const answer = await ask("/v1/ilme/compare", { method: "POST", body: form, signal: mine.signal });
    const changed = show(answer, blob);
    $("again").disabled = false;
    say(`Done: ${answer.seconds.toFixed(1)} s of audio${changed ? "" : "; the domain changes nothing here"}.`);
  } catch (error) {
    if (error.name !== "AbortError") say(error.message, true);
  } finally {
    if (asking === mine) $("result").removeAttribute("aria-busy");
  }
}

const listenAgain = () => recording && listen(recording.blob, recording.name);

$("file").addEventListener("change", () => { const [f] = $("file").files; if (f) listen(f, f.name); $("file").value = ""; });
$("speak").addEventListener("click", () => speak(listen));
$("again").addEventListener("click", listenAgain);
$("model").addEventListener("change", listenAgain);
$("key").addEventListener("change", listModels);
$("form").addEventListener("submit", (event) => event.preventDefault());
for (const name of ["lm", "ilm"]) $(name).addEventListener("input", () => rank());
$("reset").addEventListener("click", reset);
const drop = $("drop");
for (const kind of ["dragover", "dragleave", "drop"])
  drop.addEventListener(kind, (event) => {
    event.preventDefault();
    drop.classList.toggle("over", kind === "dragover");
    const file = kind === "drop" && event.dataTransfer.files[0];
    if (file) listen(file, file.name);
  });
for (const kind of ["dragover", "drop"])  // a file that misses the box must not replace the page
  addEventListener(kind, (event) => event.preventDefault());
startWords();
startDomains(listenAgain).then(() => { document.documentElement.dataset.ready = "yes"; });
