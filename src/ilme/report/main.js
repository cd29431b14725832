"use strict";
// Puts one test set on the page; the switch at the top changes the set.

const data = JSON.parse(document.getElementById("data").textContent);
const byId = (id) => document.getElementById(id);

function headlines(set) {
  byId("headlines").replaceChildren(...set.headlines.map((h) => html("div", { class: h.relative > 0 ? "headline worse" : "headline" },
    html("p", { class: "of" }, h.of),
    html("p", { class: "figure-big" }, `${h.relative > 0 ? "+" : "−"}${Math.abs(h.relative).toFixed(1)} %`),
    html("p", { class: "from-to" }, `${h.from} → ${h.to} WER`),
    html("p", { class: "sure" }, h.sure),
    ...(h.best ? [html("p", { class: "best-here" }, h.best)] : []))));
}

function fillTable(place, table) {
  const head = html("tr", {}, ...table.columns.map((c) => html("th", { scope: "col" }, c)));
  const rows = table.rows.map((row, k) => {
    const classes = [table.groups.includes(k) && k ? "group" : "", table.best.includes(k) ? "best" : ""].join(" ").trim();
    return html("tr", { class: classes || null }, ...row.map((cell) => html("td", {}, cell)));
  });
  place.replaceChildren(html("thead", {}, head), html("tbody", {}, ...rows));
}

function weights(set) {
  const maps = set.tunings.filter((t) => t.tuning.heat_map.lm.length > 1);
  byId("weights").hidden = byId("balance").hidden = maps.length === 0;
  byId("heat").replaceChildren(...maps.map(({ name, tuning }) => {
    const place = html("div", { class: "figure", "data-figure": "heat" });
    const box = html("div", {}, html("h3", {}, name), place, html("p", { class: "caption" }, tuning.caption));
    requestAnimationFrame(() => figure(place, tuning.heat_map.subtracted.length > 1 ? heatMap(tuning) : weightLine(tuning), `dev WER over the weights of ${name}`));
    return box;
  }));
  byId("balances").replaceChildren(...maps.map(({ name, tuning }) => {
    const b = tuning.balance;
    const series = [["substituted", "var(--warn)", b.substitutions], ["deleted", "var(--bad)", b.deletions], ["inserted", "var(--good)", b.insertions]]
      .map(([label, colour, values]) => ({ name: label, colour, points: values.map((v, k) => [b.lm[k], v]) }));
    const place = html("div", { class: "figure", "data-figure": "balance" });
    const tuned = (out, x, y) => out.append(
      svg("line", { class: "crosshair", x1: x(tuning.weights.lm), x2: x(tuning.weights.lm), y1: 10, y2: y(0) }),
      text(x(tuning.weights.lm) + 5, 18, "tuned"));
    const chart = lineChart({ series, xName: "λ", yName: "% of words", zero: true, unit: " %", marks: tuned });
    requestAnimationFrame(() => figure(place, chart, `kinds of error over λ for ${name}`));
    return html("div", {}, html("h3", {}, name), key(series), place);
  }));
}

// A method with one free weight: WER over λ as a line.
function weightLine(tuning) {
  const points = tuning.heat_map.lm.map((v, k) => [v, tuning.heat_map.wer[0][k]]);
  const rate = (n) => (100 * (n.substitutions + n.deletions + n.insertions)) / (n.hits + n.substitutions + n.deletions);
  return lineChart({ series: [{ name: "WER", colour: "var(--accent)", points }], xName: "λ, external language model", yName: "WER %", unit: " %",
    marked: [...tuning.steps.map((step) => rate(step.counts)), rate(tuning.dev)],
    marks: (out, x, y) => decodedPoints(out, tuning, (w, step) => [x(w.lm), y(step ? rate(step.counts) : rate(tuning.dev))]) });
}

function curves() {
  byId("curves").hidden = data.curves.length === 0;
  if (!data.curves.length) return;
  const place = document.querySelector('[data-figure="curves"]');
  const colours = ["var(--ilme)", "var(--sf)", "var(--dr)", "var(--other)", "var(--lodr)"];
  const series = data.curves.map((c, k) => ({ ...c, colour: c.dash ? "var(--faint)" : colours[k % colours.length] }));
  place.replaceChildren(key(series));
  figure(place, lineChart({ series, xName: data.curvesBy, yName: "perplexity", log: true }), "internal LM perplexity during training");
}

function where(set) {
  const place = document.querySelector('[data-figure="lengths"]');
  const methods = [...new Set(set.systems.map((s) => s.method))];
  place.replaceChildren(key(methods.map((name) => ({ name, colour: colourOf(name) }))));
  figure(place, dotChart(set.lengths, set.systems), "WER by length of the utterance");
  const select = byId("words-pair");
  select.parentElement.hidden = set.changes.length === 0;
  select.replaceChildren(...set.changes.map((c, k) => html("option", { value: k }, c.name)));
  const list = (title, entries, total, kind) => {
    const most = Math.max(1, ...entries.map((e) => e[1]));
    return html("div", { class: kind }, html("h4", {}, `${title} ${total}`), html("ol", {}, ...entries.map(([word, n]) => html("li", {},
      html("span", { class: "w" }, word), html("span", { class: "bar", style: `width:${(100 * n) / most}%` }), html("span", { class: "n" }, `${n}`)))));
  };
  select.onchange = () => {
    const c = set.changes[+select.value];
    byId("words").replaceChildren(html("div", { class: "wordlist" }, list("fixed", c.fixed, c.fixedTotal, "fixed"), list("broken", c.broken, c.brokenTotal, "broken")));
  };
  byId("words").replaceChildren();
  if (set.changes.length) { select.value = `${set.change}`; select.onchange(); }
}

function showSet(k) {
  const set = data.sets[k];
  byId("lede").textContent = set.lede;
  headlines(set);
  figure(document.querySelector('[data-figure="bars"]'), barChart(set.systems), "word error rate of each system with its interval");
  fillTable(byId("table"), set.table);
  byId("table-note").textContent = set.table.note;
  fillTable(byId("pairs"), set.pairs);
  byId("pairs").closest("details").hidden = set.pairs.rows.length === 0;
  weights(set);
  where(set);
  speakers(set);
  transcripts(set);
  stories(set);
  navigation();
}

function navigation() {
  const names = { results: "Results", weights: "Weights", balance: "Balance", curves: "Internal LM", where: "Where", transcripts: "Transcripts", why: "Why" };
  byId("nav").replaceChildren(...Object.entries(names).filter(([id]) => !byId(id).hidden).map(([id, name]) => html("a", { href: `#${id}` }, name)));
}

byId("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
});
byId("set").replaceChildren(...data.sets.map((set, k) => html("option", { value: k }, set.name)));
byId("set-switch").hidden = data.sets.length < 2;
byId("set").onchange = () => showSet(+byId("set").value);
opening();
curves();
showSet(0);
document.documentElement.dataset.ready = "yes";
