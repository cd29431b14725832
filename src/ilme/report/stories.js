"use strict";
// Why a hypothesis won: the share of every label in every component, weighed as in the search.

const PARTS = [
  { name: "recogniser", colour: "var(--bs)", of: (s) => s.asr },
  { name: "+ λ · language model", colour: "var(--sf)", of: (s, w) => w.lm * s.lm },
  { name: "− μ · subtracted", colour: "var(--ilme)", of: (s, w) => -w.subtracted * s.subtracted },
];
const LISTED = { name: "+ κ · listed phrases", colour: "var(--dr)", of: (s, w) => w.phrases * s.phrases };
const partsOf = (weights) => weights.phrases ? [...PARTS, LISTED] : PARTS;

// Which labels of one hypothesis lie outside what it shares, at its beginning and its end, with another.
function differing(mine, theirs) {
  const same = (a, b) => a !== undefined && b !== undefined && a.piece === b.piece;
  let begin = 0, end = 0;
  while (same(mine[begin], theirs[begin])) begin += 1;
  while (end < Math.min(mine.length, theirs.length) - begin && same(mine.at(-1 - end), theirs.at(-1 - end))) end += 1;
  return mine.map((_, k) => k >= begin && k < mine.length - end);
}

const signed = (v) => v.toFixed(2).replace("-", "−");

function shareChart(choice, weights, reach, marked) {
  const parts = partsOf(weights), column = 13 * (parts.length + 1), left = 40, tall = 150, foot = 34;
  const values = choice.shares.map((s) => parts.map((part) => part.of(s, weights)));
  const width = left + column * values.length + 8, height = tall + foot;
  const y = (v) => 8 + ((reach[1] - v) / (reach[1] - reach[0])) * (tall - 12);
  const out = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, style: `width:${width}px`, role: "img", "aria-label": `scores of ${choice.text}` });
  for (const v of ticks(reach[0], reach[1], 4)) {
    out.append(svg("line", { class: v === 0 ? "axis" : "tick", x1: left, x2: width, y1: y(v), y2: y(v) }), text(left - 6, y(v) + 4, short(v), { "text-anchor": "end" }));
  }
  values.forEach((trio, k) => {
    const at = left + k * column, s = choice.shares[k];
    const name = s.piece === "" ? "⟨end⟩" : s.piece.replace(/^[▁Ġ]/, "·");
    const group = svg("g", { class: "label-shares" }, svg("rect", { class: marked[k] ? "marked" : null, x: at, y: 0, width: column, height, fill: marked[k] ? null : "transparent" }));
    trio.forEach((v, n) => group.append(svg("rect", { x: at + 7 + n * 13, y: Math.min(y(v), y(0)), width: 11, height: Math.max(0.8, Math.abs(y(v) - y(0))), rx: 1.5, fill: parts[n].colour })));
    group.append(text(at + column / 2, height - 12, name.length > 8 ? `${name.slice(0, 6)}…` : name, { class: marked[k] ? "piece differs" : "piece", "text-anchor": "middle" }));
    out.append(tooltip(group, [name, ...parts.map((p, n) => `${p.name}: ${signed(trio[n])}`), `together: ${signed(trio.reduce((a, b) => a + b, 0))}`].join("\n")));
  });
  return out;
}

function storyView(story) {
  const weights = story.weights, parts = partsOf(weights);
  const all = story.choices.flatMap((c) => c.shares.flatMap((s) => parts.map((p) => p.of(s, weights))));
  const reach = [Math.min(-1, ...all), Math.max(1, ...all)];
  const best = story.choices[0].score;
  return [key(parts), ...story.choices.map((choice) => {
    const other = story.choices.find((c) => c !== choice) || choice;
    const marked = differing(choice.shares, (choice === story.choices[0] ? other : story.choices[0]).shares);
    const sums = parts.map((p) => choice.shares.reduce((total, s) => total + p.of(s, weights), 0));
    const line = html("p", { class: "sums" },
      ...parts.map((p, n) => html("span", {}, `${p.name} `, html("b", {}, signed(sums[n])))),
      html("span", {}, "score ", html("b", {}, signed(choice.score)), choice.score === best ? "" : ` (${signed(choice.score - best)} against the chosen)`));
    return html("div", { class: "story" },
      html("p", { class: "who", style: "margin:0" }, choice.labels.join(", ")),
      html("p", { class: "said" }, choice.text || "(nothing)"),
      line,
      html("div", { class: "scroll" }, shareChart(choice, weights, reach, marked)));
  })];
}

function stories(set) {
  const select = document.getElementById("story"), place = document.getElementById("stories");
  document.getElementById("why").hidden = set.stories.length === 0;
  select.replaceChildren(...set.stories.map((s, k) => html("option", { value: k }, `${s.system}: ${s.reference}`)));
  select.onchange = () => place.replaceChildren(...storyView(set.stories[+select.value].story));
  if (set.stories.length) select.onchange();
}
