"use strict";
// What was gained, in words, and the recordings to hear it on.

function recording(r) {
  const row = (name, kind, ...content) => [html("dt", {}, name), html("dd", { class: kind }, ...content)];
  return html("article", { class: "card" },
    html("div", { class: "meta" }, html("span", {}, r.set), html("span", {}, r.id),
      html("audio", { controls: "", preload: "none", src: r.audio, "aria-label": `recording of ${r.id}` })),
    html("dl", { class: "two" },
      ...row("said", "reference", r.reference),
      ...row(r.beforeName, "hypothesis", ...words(r.before)),
      ...row(r.afterName, "hypothesis after", ...words(r.after))));
}

function opening() {
  const { claims, recordings, note, chosen } = data.opening;
  document.getElementById("chosen").hidden = !chosen;
  document.querySelector("#chosen p").textContent = chosen;
  document.getElementById("opening").hidden = claims.length === 0;
  document.getElementById("claims").replaceChildren(...claims.map((claim) => html("p", { class: "claim" }, claim)));
  document.getElementById("heard").replaceChildren(...recordings.map(recording));
  document.getElementById("heard-note").textContent = note;
}
