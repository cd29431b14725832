"use strict";
// Side-by-side transcripts. A reference word that is right is a string; an error is [kind, reference, hypothesis].

const PAGE = 8;

function words(edits) {
  const out = [];
  for (const edit of edits) {
    if (out.length) out.push(" ");
    if (typeof edit === "string") out.push(edit);
    else if (edit[0] === "s") out.push(html("span", { class: "sub", title: `said: ${edit[1]}` }, edit[2]));
    else if (edit[0] === "d") out.push(html("span", { class: "del", title: "deleted" }, edit[1]));
    else out.push(html("span", { class: "ins", title: "inserted" }, edit[2]));
  }
  return out;
}

const errorCount = (edits) => edits.filter((e) => typeof e !== "string").length;

function card(set, utterance) {
  const meta = html("div", { class: "meta" }, html("span", {}, utterance.id));
  if (utterance.speaker) meta.append(html("span", {}, `speaker ${utterance.speaker}`));
  if (utterance.seconds) meta.append(html("span", {}, `${utterance.seconds.toFixed(1)} s`));
  if (utterance.audio) meta.append(html("audio", { controls: "", preload: "none", src: utterance.audio, "aria-label": `recording of ${utterance.id}` }));
  else if (utterance.noAudio) meta.append(html("span", { title: utterance.noAudio }, "recording unreadable"));
  const list = html("dl", {}, html("dt", {}, "reference"), html("dd", { class: "reference" }, utterance.reference), html("dd", { class: "errors" }, ""));
  set.systems.forEach((system, k) => {
    const edits = utterance.edits[k], wrong = errorCount(edits);
    list.append(
      html("dt", {}, set.oneModel ? system.method : system.name),
      html("dd", { class: "hypothesis" }, ...words(edits)),
      html("dd", { class: wrong ? "errors" : "errors clean" }, wrong ? `${wrong} wrong` : "right"));
  });
  // on a phone the count stands beside the name, above the words
  if (matchMedia("(max-width: 40rem)").matches) {
    list.querySelectorAll("dd.hypothesis, dd.reference").forEach((dd) => dd.nextElementSibling.after(dd));
  }
  return html("li", { class: "card", id: `utterance-${utterance.id}` }, meta, list);
}

const FILTERS = {
  all: () => true,
  errors: (u) => u.wrong.some((n) => n > 0),
  differ: (u) => new Set(u.edits.map((e) => JSON.stringify(e))).size > 1,
  audio: (u) => Boolean(u.audio),
};

// The filter that a name such as "differ", or "fixed 2 0" (of systems 2 and 0), stands for.
function filterOf(name) {
  const [kind, a, b] = name.split(" ");
  if (kind === "fixed") return (u) => u.wrong[a] < u.wrong[b];
  if (kind === "broken") return (u) => u.wrong[a] > u.wrong[b];
  return FILTERS[name];
}

function pairOptions(set, kind) {
  return set.changes.map((c) => html("option", { value: `${kind} ${c.a} ${c.b}` }, `${kind}: ${c.name}`));
}

function transcripts(set) {
  const show = document.getElementById("show"), find = document.getElementById("find");
  const cards = document.getElementById("cards"), more = document.getElementById("more"), count = document.getElementById("count");
  for (const u of set.utterances) {
    u.wrong = u.edits.map(errorCount);
    u.searched = [u.id, u.speaker, u.reference, ...u.edits.flat(2)].join(" ").toLowerCase();
  }
  show.querySelectorAll("optgroup").forEach((group) => group.remove());
  for (const kind of ["fixed", "broken"]) {
    if (set.changes.length) show.append(html("optgroup", { label: `Words ${kind}` }, ...pairOptions(set, kind)));
  }
  show.value = set.systems.length < 2 ? "errors" : "differ";
  let shown = PAGE;
  const update = () => {
    const wanted = find.value.trim().toLowerCase();
    const chosen = filterOf(show.value);
    const kept = set.utterances.filter((u) => chosen(u) && u.searched.includes(wanted));
    cards.replaceChildren(...kept.slice(0, shown).map((u) => card(set, u)));
    const hidden = set.total - set.utterances.length;
    count.textContent = `${kept.length} of ${set.utterances.length}${hidden ? ` (${hidden} more are not in this file)` : ""}`;
    more.hidden = kept.length <= shown;
  };
  const again = () => { shown = PAGE; update(); };
  show.onchange = again;
  find.oninput = again;
  more.onclick = () => { shown += PAGE; update(); };
  update();
}
