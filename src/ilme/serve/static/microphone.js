// The microphone: what is said goes to the service as it is said, for words at once, and is kept to be heard as a whole.
import { $, say } from "/page/service.js";

const LONGEST = 600;  // seconds
let stop = null;

export async function speak(listen) {
  if (stop) return stop();
  let stream;
  try {
    if (!navigator.mediaDevices) throw new Error("a browser lets a page use it only at localhost or over https");
    stream = await navigator.mediaDevices.getUserMedia({ audio: true });
  } catch (error) {
    return say(`The microphone cannot be used: ${error.message}`, true);
  }
  const context = new AudioContext(), pieces = [], line = live(context.sampleRate);
  await context.audioWorklet.addModule("/page/recorder.js");
  const node = new AudioWorkletNode(context, "recorder");
  node.port.onmessage = (event) => { pieces.push(event.data); line.send(event.data); };
  context.createMediaStreamSource(stream).connect(node);
  button(true);
  say("Speak now …");
  const timer = setTimeout(() => stop?.(), 1000 * LONGEST);
  stop = () => {
    stop = null;
    clearTimeout(timer);
    stream.getTracks().forEach((track) => track.stop());
    context.close();
    line.end();
    button(false);
    listen(wave(pieces, context.sampleRate), "microphone.wav");
  };
}

function button(speaking) {
  $("speak").setAttribute("aria-pressed", String(speaking));
  $("speak").textContent = speaking ? "Stop" : "Speak";
}

// A realtime session: turn after turn is written while it is spoken.
function live(rate) {
  const turns = new Map();
  const write = () => { $("live").textContent = [...turns.values()].join(" "); };
  let socket, waiting = [], size = 0;
  $("live-box").hidden = false;
  $("live").textContent = "";
  const flush = () => {
    if (socket?.readyState !== WebSocket.OPEN || !size) return;
    tell("input_audio_buffer.append", { audio: base64(pcm(waiting, size)) });
    waiting = []; size = 0;
  };
  const tell = (type, fields = {}) => socket.send(JSON.stringify({ type, ...fields }));
  try {
    const key = $("key").value, where = `${location.protocol === "https:" ? "wss" : "ws"}://${location.host}/v1/realtime`;
    const query = new URLSearchParams({ intent: "transcription", model: $("model").value });
    socket = new WebSocket(`${where}?${query}`, ["realtime", ...(key ? [`openai-insecure-api-key.${token(key)}`] : [])]);
  } catch (error) {
    $("live").textContent = `(no words while you speak: ${error.message})`;
    return { send() {}, end() {} };
  }
  socket.onopen = () => {
    const hotwords = $("names").value.split(/[\n,]/).map((w) => w.trim()).filter(Boolean);
    const input = { format: { type: "audio/pcm", rate }, transcription: { hotwords } };
    tell("session.update", { session: { type: "transcription", audio: { input } } });
    flush();
  };
  socket.onclose = (event) => {
    if (event.code === 1000 || event.code === 1005) return;  // it was to end
    turns.set("error", "(no more words come while you speak; the whole is heard when you stop)");
    write();
  };
  socket.onmessage = (event) => {
    const { type, item_id: item, delta, transcript, error } = JSON.parse(event.data);
    if (type.endsWith(".delta")) turns.set(item, (turns.get(item) ?? "") + delta);
    else if (type.endsWith(".completed")) turns.set(item, transcript);
    else if (type === "error" && error.code !== "input_audio_buffer_commit_empty") turns.set("error", `(${error.message})`);
    else if (type === "input_audio_buffer.cleared") socket.close();
    write();
  };
  return {
    send(samples) { waiting.push(samples); size += samples.length; if (size >= rate / 10) flush(); },
    end() {
      flush();
      if (socket.readyState !== WebSocket.OPEN) return socket.close();
      tell("input_audio_buffer.commit");
      tell("input_audio_buffer.clear");
    },
  };
}

// A key as a subprotocol may hold it: percent-encoded, brackets too.
const token = (key) => encodeURIComponent(key).replace(/[()]/g, (c) => `%${c.charCodeAt(0).toString(16)}`);

const clipped = (x) => Math.max(-1, Math.min(1, x)) * 32767;

function pcm(pieces, count) {
  const view = new DataView(new ArrayBuffer(2 * count));
  let at = 0;
  for (const piece of pieces) for (const x of piece) { view.setInt16(at, clipped(x), true); at += 2; }
  return view;
}

function base64(view) {
  const bytes = new Uint8Array(view.buffer);
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(text);
}

// 16-bit mono WAV.
function wave(pieces, rate) {
  const count = pieces.reduce((n, p) => n + p.length, 0), head = new DataView(new ArrayBuffer(44));
  const text = (at, s) => [...s].forEach((c, k) => head.setUint8(at + k, c.charCodeAt(0)));
  text(0, "RIFF"); head.setUint32(4, 36 + 2 * count, true); text(8, "WAVEfmt ");
  head.setUint32(16, 16, true); head.setUint16(20, 1, true); head.setUint16(22, 1, true);
  head.setUint32(24, rate, true); head.setUint32(28, 2 * rate, true); head.setUint16(32, 2, true);
  head.setUint16(34, 16, true); text(36, "data"); head.setUint32(40, 2 * count, true);
  return new Blob([head, pcm(pieces, count)], { type: "audio/wav" });
}
