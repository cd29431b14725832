"use strict";
// Charts as SVG. Every chart is a function of (width, data) and is drawn again when its place changes width.

const SVG = "http://www.w3.org/2000/svg";

function svg(tag, attributes = {}, ...children) {
  const node = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function html(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) if (value !== null) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

function text(x, y, content, attributes = {}) {
  return svg("text", { x, y, ...attributes }, content);
}

const observed = new Map();
const widths = new ResizeObserver((entries) => {
  for (const entry of entries) {
    const place = observed.get(entry.target);
    const width = Math.round(entry.contentRect.width);
    if (place && width && width !== place.width) {
      place.width = width;
      place.draw(width);
    }
  }
});

// Draws now, and again whenever the container's width changes.
function figure(container, chart, label) {
  const draw = (width) => {
    const drawn = chart(width);
    drawn.setAttribute("role", "img");
    drawn.setAttribute("aria-label", label);
    container.querySelector(":scope > svg")?.remove();
    container.append(drawn);
  };
  const width = Math.round(container.getBoundingClientRect().width) || 640;
  observed.set(container, { width, draw });
  draw(width);
  widths.observe(container);
}

const tip = document.getElementById("tip");

function tooltip(node, content) {
  const show = (event) => {
    tip.textContent = typeof content === "function" ? content(event) : content;
    tip.hidden = false;
    const box = tip.getBoundingClientRect();
    const x = Math.min(event.clientX + 14, innerWidth - box.width - 8);
    const y = event.clientY + 18 + box.height > innerHeight ? event.clientY - box.height - 12 : event.clientY + 18;
    tip.style.left = `${Math.max(4, x)}px`;
    tip.style.top = `${y}px`;
  };
  node.addEventListener("pointermove", show);
  node.addEventListener("pointerleave", () => { tip.hidden = true; });
  return node;
}

function ticks(low, high, count) {
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough || 1));
  const step = [1, 2, 2.5, 5, 10].map((m) => m * power).find((s) => s >= rough) || power;
  const out = [];
  for (let v = Math.ceil(low / step - 1e-9) * step; v <= high + step * 1e-6; v += step) out.push(+v.toFixed(10));
  return out;
}

function logTicks(low, high) {
  const out = [];
  for (let p = Math.floor(Math.log10(low)); p <= Math.ceil(Math.log10(high)); p += 1) {
    for (const m of [1, 2, 5]) if (m * 10 ** p >= low * 0.999 && m * 10 ** p <= high * 1.001) out.push(m * 10 ** p);
  }
  return out.length > 1 ? out : ticks(low, high, 4);
}

const short = (v) => (Math.abs(v) >= 10000 ? `${+(v / 1000).toPrecision(3)}k` : `${+v.toPrecision(4)}`);
const COLOURED = ["bs", "sf", "dr", "lodr", "ilme"];
const colourOf = (method) => {
  const name = method.toLowerCase();
  return `var(--${COLOURED.includes(name) ? name : name.endsWith("+ phrases") ? "phrases" : "other"})`;
};

// WER of each system as a bar with its interval, grouped by model.
function barChart(systems) {
  return (width) => {
    const models = [...new Set(systems.map((s) => s.model))];
    const left = Math.min(124, Math.max(52, 12 + 8 * Math.max(...systems.map((s) => s.method.length))));
    const right = 58, row = 34, head = 30;
    const top = Math.max(...systems.map((s) => s.ci95[1])) * 1.04;
    const x = (v) => left + (v / top) * (width - left - right);
    const height = models.length * head + systems.length * row + 28;
    const out = svg("svg", { viewBox: `0 0 ${width} ${height}`, height });
    for (const v of ticks(0, top, width < 500 ? 4 : 8)) {
      out.append(svg("line", { class: "tick", x1: x(v), x2: x(v), y1: head - 6, y2: height - 22 }));
      out.append(text(x(v), height - 6, v === 0 ? "0 %" : short(v), { "text-anchor": "middle" }));
    }
    let y = 0;
    for (const model of models) {
      out.append(text(0, y + 19, model, { class: "group" }));
      y += head;
      for (const s of systems.filter((one) => one.model === model)) {
        const middle = y + row / 2 - 3;
        const [low, high] = s.ci95;
        const bar = svg("g", {},
          svg("rect", { class: "bar", x: left, y: y + 2, width: Math.max(1, x(s.test_wer) - left), height: row - 11, rx: 3, fill: colourOf(s.method) }),
          svg("line", { class: "whisker", x1: x(low), x2: x(high), y1: middle, y2: middle }),
          svg("line", { class: "whisker", x1: x(low), x2: x(low), y1: middle - 4, y2: middle + 4 }),
          svg("line", { class: "whisker", x1: x(high), x2: x(high), y1: middle - 4, y2: middle + 4 }),
          text(x(high) + 8, middle + 4, s.wer, { class: "value" }));
        tooltip(bar, `${s.name}: ${s.wer} % (${low.toFixed(2)}–${high.toFixed(2)})\n${s.substitutions} substituted, ${s.deletions} deleted, ${s.insertions} inserted`);
        out.append(text(left - 10, middle + 4, s.method, { class: "label", "text-anchor": "end" }), bar);
        y += row;
      }
    }
    return out;
  };
}

// The colour of a WER between the least and the most of its map; most of the scale is spent near the least.
function heatColour(value, low, high) {
  const part = high > low ? Math.sqrt(Math.min(1, Math.max(0, (value - low) / (high - low)))) : 0;
  const near = part < 0.5;
  const share = Math.round((near ? part * 2 : part * 2 - 1) * 100);
  return near
    ? `color-mix(in oklab, var(--heat-mid) ${share}%, var(--heat-low))`
    : `color-mix(in oklab, var(--heat-high) ${share}%, var(--heat-mid))`;
}

function heatMap(tuning) {
  const { lm, subtracted, wer } = tuning.heat_map;
  const flat = wer.flat().sort((a, b) => a - b);
  const least = flat[0], most = Math.max(flat[Math.floor(flat.length * 0.8)], least * 1.15);
  return (width) => {
    const left = 40, bottom = 40, top = 8, right = 10;
    const inner = width - left - right, tall = Math.min(inner * 0.85, 300);
    const height = tall + top + bottom;
    const step = (values) => (values.length > 1 ? values[1] - values[0] : 1);
    const wide = inner / lm.length, high = tall / subtracted.length;
    const x = (v) => left + ((v - lm[0]) / step(lm) + 0.5) * wide;
    const y = (v) => top + tall - ((v - subtracted[0]) / step(subtracted) + 0.5) * high;
    const out = svg("svg", { viewBox: `0 0 ${width} ${height}`, height });
    const cells = svg("g", { class: "cells", "shape-rendering": "crispEdges" });
    wer.forEach((line, r) => line.forEach((value, c) => {
      const cell = svg("rect", { x: left + c * wide, y: top + tall - (r + 1) * high, width: wide + 0.4, height: high + 0.4, fill: heatColour(value, least, most) });
      cells.append(tooltip(cell, `λ ${lm[c].toFixed(3)}, μ ${subtracted[r].toFixed(3)}\nWER ${value.toFixed(2)} %`));
    }));
    out.append(cells);
    for (const v of ticks(lm[0], lm[lm.length - 1], width < 330 ? 3 : 5)) out.append(text(x(v), height - bottom + 16, short(v), { "text-anchor": "middle" }));
    for (const v of ticks(subtracted[0], subtracted[subtracted.length - 1], 5)) out.append(text(left - 6, y(v) + 4, short(v), { "text-anchor": "end" }));
    out.append(text(left + inner / 2, height - 4, "λ, external language model", { "text-anchor": "middle" }));
    out.append(text(0, 0, "μ, subtracted", { "text-anchor": "middle", transform: `translate(10 ${top + tall / 2}) rotate(-90)` }));
    decodedPoints(out, tuning, (w) => [x(w.lm), y(w.subtracted)]);
    return out;
  };
}

function decodedPoints(out, tuning, place) {
  tuning.steps.forEach((step, k) => {
    const [cx, cy] = place(step.weights, step);
    const mark = svg("g", { class: "decoded" }, svg("circle", { class: "point", cx, cy, r: 7.5 }), text(cx, cy, `${k + 1}`, { class: "point-number" }));
    const n = step.counts, words = n.hits + n.substitutions + n.deletions;
    tooltip(mark, `decode ${k + 1}: λ ${step.weights.lm.toFixed(3)}, μ ${step.weights.subtracted.toFixed(3)}\nWER in the search ${(100 * (n.substitutions + n.deletions + n.insertions) / words).toFixed(2)} %`);
    out.append(mark);
  });
  const [cx, cy] = place(tuning.weights, null);
  out.append(svg("circle", { class: "chosen", cx, cy, r: 11 }));
}

// Lines over a common x. series: [{name, colour, points: [[x, y]], dash}]
function lineChart({ series, xName, yName, log = false, zero = false, marks = null, marked = [], unit = "" }) {
  const drawn = series.filter((s) => s.points.length);
  const xs = drawn.flatMap((s) => s.points.map((p) => p[0])), ys = [...marked, ...drawn.flatMap((s) => s.points.map((p) => p[1]))];
  const x0 = Math.min(...xs), x1 = Math.max(...xs, x0 + 1e-9);
  const y0 = zero ? 0 : Math.min(...ys) * (log ? 0.92 : 1) - (log ? 0 : 0.1 * (Math.max(...ys) - Math.min(...ys)));
  const y1 = Math.max(...ys) * 1.06 + 1e-9;
  const f = log ? Math.log : (v) => v;
  return (width) => {
    const left = 46, right = 12, top = 10, bottom = 40, height = Math.round(Math.min(320, Math.max(210, width * 0.5)));
    const x = (v) => left + ((v - x0) / (x1 - x0)) * (width - left - right);
    const y = (v) => top + (1 - (f(v) - f(y0)) / (f(y1) - f(y0))) * (height - top - bottom);
    const out = svg("svg", { viewBox: `0 0 ${width} ${height}`, height });
    for (const v of log ? logTicks(y0, y1) : ticks(y0, y1, 5)) {
      out.append(svg("line", { class: "tick", x1: left, x2: width - right, y1: y(v), y2: y(v) }), text(left - 8, y(v) + 4, short(v), { "text-anchor": "end" }));
    }
    for (const v of ticks(x0, x1, width < 420 ? 4 : 7)) out.append(text(x(v), height - bottom + 17, short(v), { "text-anchor": "middle" }));
    out.append(text(left + (width - left - right) / 2, height - 4, xName, { "text-anchor": "middle" }));
    out.append(text(0, 0, yName, { "text-anchor": "middle", transform: `translate(9 ${(height - bottom) / 2}) rotate(-90)` }));
    for (const s of drawn) {
      const path = s.points.map((p, k) => `${k ? "L" : "M"}${x(p[0]).toFixed(1)} ${y(p[1]).toFixed(1)}`).join("");
      out.append(svg("path", { class: "series", d: path, stroke: s.colour, "stroke-dasharray": s.dash || null }));
    }
    const line = svg("line", { class: "crosshair", y1: top, y2: height - bottom, visibility: "hidden" });
    const field = svg("rect", { x: left, y: top, width: Math.max(1, width - left - right), height: height - top - bottom, fill: "transparent" });
    field.addEventListener("pointerleave", () => line.setAttribute("visibility", "hidden"));
    tooltip(field, (event) => {
      const box = out.getBoundingClientRect();
      const at = x0 + (((event.clientX - box.left) * (width / box.width) - left) / (width - left - right)) * (x1 - x0);
      const near = (s) => s.points.reduce((a, b) => (Math.abs(b[0] - at) < Math.abs(a[0] - at) ? b : a));
      line.setAttribute("visibility", "visible");
      const seen = near(drawn[0])[0];
      line.setAttribute("x1", x(seen)); line.setAttribute("x2", x(seen));
      return [`${xName}: ${short(seen)}`, ...drawn.map((s) => `${s.name}: ${near(s)[1].toFixed(2)}${unit}`)].join("\n");
    });
    out.append(line, field);
    if (marks) marks(out, x, y);
    return out;
  };
}

function key(series) {
  return html("div", { class: "key" }, ...series.map((s) => html("span", {}, html("i", { style: `--swatch: ${s.colour}` }), s.name)));
}

// One row per group, one dot per system; one panel per model.
function dotChart(groups, systems) {
  const models = [...new Set(systems.map((s) => s.model))];
  const top = Math.max(1, ...groups.flatMap((g) => g.rates)) * 1.05;
  return (width) => {
    const left = 86, right = 16, row = 26, head = models.length > 1 ? 24 : 4;
    const panel = head + groups.length * row, height = models.length * panel + 30;
    const x = (v) => left + (v / top) * (width - left - right);
    const out = svg("svg", { viewBox: `0 0 ${width} ${height}`, height });
    for (const v of ticks(0, top, 5)) {
      out.append(svg("line", { class: "tick", x1: x(v), x2: x(v), y1: 4, y2: height - 24 }), text(x(v), height - 8, v === 0 ? "0 %" : short(v), { "text-anchor": "middle" }));
    }
    models.forEach((model, m) => {
      if (models.length > 1) out.append(text(0, m * panel + 16, model, { class: "group" }));
      groups.forEach((g, k) => {
        const y = m * panel + head + k * row + row / 2;
        const mine = systems.map((s, n) => [s, g.rates[n]]).filter(([s]) => s.model === model);
        const rates = mine.map(([, rate]) => rate);
        out.append(text(0, y + 4, `${g.name} words`, { class: "label" }));
        out.append(svg("line", { class: "tick", x1: x(Math.min(...rates)), x2: x(Math.max(...rates)), y1: y, y2: y, "stroke-width": 2 }));
        for (const [s, rate] of mine) {
          const dot = svg("circle", { class: "dot", cx: x(rate), cy: y, r: 5.5, fill: colourOf(s.method), stroke: "var(--paper)", "stroke-width": 1.2 });
          out.append(tooltip(dot, `${s.name}: ${rate.toFixed(2)} %\n${g.words} words in utterances of ${g.name}`));
        }
      });
    });
    return out;
  };
}
