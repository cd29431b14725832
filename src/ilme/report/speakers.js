"use strict";
// WER of each speaker: one panel per model, hardest speaker first, one dot per method.

const SPEAKERS_FIRST = 24; // rows shown before the reader asks for all

// One row per speaker below a row for all of them; the number of words stands at the end of the row.
function speakerChart(panel, systems, rows) {
  const mine = panel.systems.map((n) => systems[n]);
  const top = Math.max(1, ...panel.rows.flatMap((r) => r.rates), ...mine.map((s) => s.test_wer)) * 1.04;
  const longest = Math.max(...panel.rows.map((r) => r.name.length), 3);
  return (width) => {
    const left = Math.min(width * 0.3, 14 + 7.2 * longest), right = 58, row = 22, head = 22, gap = 10;
    const height = head + row + gap + rows.length * row + 26;
    const fits = Math.max(3, Math.floor((left - 12) / 7.2));
    const x = (v) => left + (v / top) * (width - left - right);
    const out = svg("svg", { viewBox: `0 0 ${width} ${height}`, height });
    for (const v of ticks(0, top, width < 420 ? 4 : 6)) {
      out.append(svg("line", { class: "tick", x1: x(v), x2: x(v), y1: head - 4, y2: height - 22 }), text(x(v), height - 6, v === 0 ? "0 %" : short(v), { "text-anchor": "middle" }));
    }
    out.append(text(width, 12, "words", { class: "count", "text-anchor": "end" }));
    const line = (y, name, rates, words, more, kind) => {
      const band = svg("g", { class: kind }, svg("rect", { class: "band", x: 0, y: y - row / 2, width, height: row, rx: 4 }));
      const shown = name.length > fits ? `${name.slice(0, fits - 1)}…` : name;
      band.append(text(6, y + 4, shown, { class: "label" }), text(width, y + 4, words.toLocaleString("en"), { class: "count", "text-anchor": "end" }));
      const ends = rates.map(x);
      band.append(svg("line", { class: "reach", x1: Math.min(...ends), x2: Math.max(...ends), y1: y, y2: y }));
      mine.forEach((s, k) => band.append(svg("circle", { class: "dot", cx: ends[k], cy: y, r: 5, fill: colourOf(s.method), stroke: "var(--paper)", "stroke-width": 1.2 })));
      const told = mine.map((s, k) => `${s.method} ${rates[k].toFixed(2)} %`).join("\n");
      out.append(tooltip(band, `${name}: ${more}\n${told}`));
    };
    const total = panel.words;
    line(head + row / 2, "all", mine.map((s) => s.test_wer), total, `${panel.total} speakers, ${total.toLocaleString("en")} words`, "speaker all");
    rows.forEach((r, k) => line(head + row + gap + k * row + row / 2, r.name, r.rates, r.words, `${r.words.toLocaleString("en")} words in ${r.utterances} utterance${r.utterances === 1 ? "" : "s"}`, "speaker"));
    return out;
  };
}

function speakers(set) {
  byId("by-speaker").hidden = set.speakers.length === 0;
  byId("speaker-panels").replaceChildren(...set.speakers.map((panel) => {
    const place = html("div", { class: "figure", "data-figure": "speakers" });
    const draw = (rows) => figure(place, speakerChart(panel, set.systems, rows), `WER by speaker, ${panel.model}`);
    const box = html("div", {}, html("h4", { class: "panel-name" }, panel.model), key(panel.systems.map((n) => set.systems[n]).map((s) => ({ name: s.method, colour: colourOf(s.method) }))), place);
    requestAnimationFrame(() => draw(panel.rows.slice(0, SPEAKERS_FIRST)));
    if (panel.rows.length > SPEAKERS_FIRST) {
      const more = html("button", { type: "button", class: "quiet" }, `Show all ${panel.rows.length} speakers`);
      more.onclick = () => { draw(panel.rows); more.remove(); };
      box.append(more);
    }
    if (panel.caption) box.append(html("p", { class: "caption" }, panel.caption));
    return box;
  }));
}
