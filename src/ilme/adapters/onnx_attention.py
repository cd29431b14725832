"""Attention models in ONNX that run as they are: an encoder and a merged decoder, as Optimum exports them.

    model = moonshine("float/encoder_model.onnx", "float/decoder_model_merged.onnx", "moonshine.min.js")
    internal = internal_lm("silence", model)

    encoder   input_values (1, samples)                                   → last_hidden_state (1, T, D)
    decoder   input_ids (n, U), encoder_hidden_states (n, T, D), past_key_values.L.{decoder,encoder}.{key,value},
              use_cache_branch                                            → logits (n, U, V), present.L.….…

Nothing inside such a graph can be replaced, but what the decoder attends to is fed to it. So an internal LM is the same
graph with encoder states that hold no speech: zeros, those of silence, or their mean over speech. What needs the inside
of a layer (`removed`, `mean-context`, `learned`) it cannot give; for those the weights are read out of the graph
(`ilme.adapters.moonshine_onnx`), where they are float32. Quantised graphs run here too.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ilme.adapters.hf import RATE, Audio, HuggingFaceTokenizer
from ilme.adapters.moonshine import padded_waves, unwritten
from ilme.adapters.moonshine_onnx import EOS, SOS, llama_js_tokenizer
from ilme.adapters.onnx_transducer import session
from ilme.errors import BadInputError, CheckpointError
from ilme.ilm.transformer import FLOOR
from ilme.runtime.state import State, map_tensors
from ilme.tokens import Tokenizer, Tokens

__all__ = ["INTERNAL", "OnnxAttention", "OnnxInternalLM", "internal_lm", "moonshine"]

INTERNAL = ("zeroed", "silence", "mean-encoder")  # internal LMs that a closed graph can give
SILENCE = 3.0  # seconds
IDS, STATES, CACHED = "input_ids", "encoder_hidden_states", "use_cache_branch"


class OnnxAttention:
    """Two ONNX files; implements `ilme.protocols.AttentionDecoder` on the CPU.

    Args:
        encoder: The encoder's file; it reads one waveform at a time, since padding would change its output.
        decoder: The decoder's, merged: with and without a cache in one graph.
        tokenizer: Text to ids, over the inventory of the output layer.
        prefix: Labels that stand before every sequence.
        suppress: Ids that are never put out.
        max_labels: The longest sequence.
        window: Seconds of audio that the model takes at once.
        threads: Threads of onnxruntime.
    """

    kind = "onnx-attention"
    rules = None
    fixed_length = False

    def __init__(
        self,
        encoder: Path,
        decoder: Path,
        tokenizer: Tokenizer,
        *,
        prefix: Sequence[int],
        suppress: Sequence[int] = (),
        max_labels: int = 194,
        window: float = 30.0,
        threads: int = 1,
    ) -> None:
        self.tokenizer = tokenizer
        self.prefix, self.max_labels, self.window = tuple(prefix), max_labels, window
        self.device = torch.device("cpu")
        self._encoder, self._decoder = session(encoder, threads), session(decoder, threads)
        self._outputs = [o.name for o in self._decoder.get_outputs()]
        self._empty = self._cache_shapes(decoder)
        self.layers = len(self._empty) // 4
        width = {i.name: i.shape for i in self._decoder.get_inputs()}[STATES][2]
        self.encoder_width = int(width)
        self.allowed = torch.zeros(len(tokenizer.tokens))
        self.allowed[torch.tensor(sorted(set(suppress)), dtype=torch.long)] = -torch.inf
        size = self.first(torch.zeros(1, self.encoder_width))[0].shape[1]
        if size != len(tokenizer.tokens):
            raise CheckpointError(f"{decoder} has {size} outputs, the tokenizer {len(tokenizer.tokens)} tokens")

    def _cache_shapes(self, path: Path) -> dict[str, np.ndarray[Any, Any]]:
        """An empty cache for one sequence by input name; an error if the graph is no merged decoder."""
        inputs = {i.name: i.shape for i in self._decoder.get_inputs()}
        past = {name: shape for name, shape in inputs.items() if name.startswith("past_key_values.")}
        wanted = {IDS, STATES, CACHED}
        if not past or len(past) % 4 or not wanted <= set(inputs):
            raise CheckpointError(
                f"{path} is no merged decoder: expected the inputs {', '.join(sorted(wanted))} and past_key_values.…, "
                f"found {', '.join(sorted(set(inputs) - set(past)))} and {len(past)} of the cache"
            )
        return {name: np.zeros((1, shape[1], 0, shape[3]), np.float32) for name, shape in past.items()}

    @property
    def tokens(self) -> Tokens:
        return self.tokenizer.tokens

    def features(self, audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
        """The waveforms themselves, padded (B, samples), and their lengths (B,)."""
        return padded_waves(audio)

    def hidden(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Encoder states, padded (B, T, D), and a mask (B, T), True where a frame counts; None if all do."""
        name = self._encoder.get_inputs()[0].name
        waves = (x[None, :n].float().numpy() for x, n in zip(features, lengths.tolist(), strict=True))
        states = [torch.from_numpy(self._encoder.run(None, {name: wave})[0][0]) for wave in waves]
        padded = torch.nn.utils.rnn.pad_sequence(states, batch_first=True)
        frames = torch.tensor([len(s) for s in states])
        if bool((frames == padded.shape[1]).all()):
            return padded, None
        return padded, torch.arange(padded.shape[1]) < frames[:, None]

    def encode(self, features: Tensor, lengths: Tensor) -> State:
        return self.memory(*self.hidden(features, lengths))

    def memory(self, hidden: Tensor, mask: Tensor | None = None) -> State:
        """Keys and values of every cross-attention, made by the graph as it reads the prefix, which is kept too."""
        frames = [hidden.shape[1]] * len(hidden) if mask is None else mask.sum(1).tolist()
        read = [self.first(h[:n]) for h, n in zip(hidden, frames, strict=True)]
        longest = max(frames)
        padded = [[torch.nn.functional.pad(x, (0, 0, 0, longest - x.shape[2])) for x in cross] for _, _, cross in read]
        return {
            "cross": [torch.cat(layer) for layer in zip(*padded, strict=True)],
            "frames": torch.tensor(frames),
            "logits": torch.cat([logits for logits, _, _ in read]),
            "cache": [torch.cat(layer) for layer in zip(*(cache for _, cache, _ in read), strict=True)],
        }

    def start(self, memory: State) -> tuple[Tensor, State]:
        return self.normalise(memory["logits"], self.allowed), memory["cache"]

    def step(self, labels: Tensor, state: State, memory: State) -> tuple[Tensor, State]:
        each = len(labels) // len(memory["frames"])
        parts = []
        for b, frames in enumerate(memory["frames"].tolist()):
            own = slice(b * each, (b + 1) * each)
            cross = [x[b : b + 1, :, :frames] for x in memory["cross"]]
            parts.append(self.advance(labels[own], [x[own] for x in state], cross))
        caches = [torch.cat(layer) for layer in zip(*(cache for _, cache in parts), strict=True)]
        return self.normalise(torch.cat([logits for logits, _ in parts]), self.allowed), caches

    def advance(self, labels: Tensor, cache: list[Tensor], cross: list[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """One more label (n,) of sequences that attend to the same frames: logits (n, V) and the new cache.

        `cross` are keys and values (1, heads, T, features) of each layer, `cache` those (n, heads, U, features) of the
        labels so far.
        """
        n = len(labels)
        given = {IDS: labels[:, None].numpy(), CACHED: np.array([True])}
        given[STATES] = np.zeros((n, 1, self.encoder_width), np.float32)  # not read: the keys and values are known
        for names, values in ((self._names("decoder"), cache), (self._names("encoder"), cross)):
            for name, value in zip(names, values, strict=True):
                given[name] = value.expand(n, *value.shape[1:]).contiguous().numpy()
        found = self._run(given)
        return torch.from_numpy(found["logits"][:, -1]), self._present(found, "decoder")

    def first(self, hidden: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The prefix over encoder states (T, D): logits (1, V), the labels' cache, the cross-attentions' pairs."""
        given = {IDS: np.array([self.prefix], dtype=np.int64), CACHED: np.array([False]), **self._empty}
        found = self._run(given | {STATES: hidden[None].float().contiguous().numpy()})
        return (
            torch.from_numpy(found["logits"][:, -1]),
            self._present(found, "decoder"),
            self._present(found, "encoder"),
        )

    def _run(self, given: dict[str, np.ndarray[Any, Any]]) -> dict[str, np.ndarray[Any, Any]]:
        return dict(zip(self._outputs, self._decoder.run(None, given), strict=True))

    def _names(self, side: str, kind: str = "past_key_values") -> list[str]:
        return [f"{kind}.{i}.{side}.{part}" for i in range(self.layers) for part in ("key", "value")]

    def _present(self, found: dict[str, np.ndarray[Any, Any]], side: str) -> list[Tensor]:
        return [torch.from_numpy(found[name]) for name in self._names(side, "present")]

    def normalise(self, logits: Tensor, allowed: Tensor) -> Tensor:
        """log softmax over the allowed units (n, V)."""
        return (logits + allowed).log_softmax(-1)


class OnnxInternalLM:
    """The decoder's graph over fixed encoder states; implements `ilme.protocols.TokenScorer`.

    Args:
        model: The model whose internal LM this is.
        hidden: What stands in for the encoder's output (T, D).
        name: How it was estimated.
    """

    def __init__(self, model: OnnxAttention, hidden: Tensor, name: str) -> None:
        if hidden.dim() != 2 or hidden.shape[1] != model.encoder_width or not len(hidden):
            raise BadInputError(f"encoder states must be (T, {model.encoder_width}), not {tuple(hidden.shape)}")
        self.model, self.name = model, name
        self.tokens, self.device = model.tokens, model.device
        self._allowed = model.allowed.clamp(min=FLOOR)
        self._logits, self._cache, self._cross = model.first(hidden)

    def start(self, n: int) -> tuple[Tensor, State]:
        rows = self.model.normalise(self._logits, self._allowed)
        return rows.expand(n, -1), map_tensors(lambda x: x.expand(n, *x.shape[1:]), self._cache)

    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        logits, cache = self.model.advance(labels, state, self._cross)
        return self.model.normalise(logits, self._allowed), cache

    def finish(self, rows: Tensor) -> Tensor:
        """log P(end | sequence): this internal LM scores the end, as its model does."""
        eos = self.tokens.eos
        return rows.new_zeros(len(rows)) if eos is None else rows[:, eos]


def internal_lm(name: str, model: OnnxAttention, speech: Sequence[Audio] = ()) -> OnnxInternalLM:
    """The internal LM of that name, one of INTERNAL.

    Args:
        name: zeroed, silence or mean-encoder, as in `ilme.ilm.transformer`.
        model: The model.
        speech: A few waveforms of 16 kHz, over whose frames mean-encoder averages.
    """
    if name not in INTERNAL:
        raise BadInputError(
            f"an ONNX graph is closed: it gives the internal LMs {', '.join(INTERNAL)}, not {name!r}, which needs the "
            "inside of its layers; convert float32 graphs with ilme.adapters.moonshine_onnx for that"
        )
    if name == "zeroed":
        return OnnxInternalLM(model, torch.zeros(1, model.encoder_width), name)
    if name == "silence":
        heard: Sequence[Audio] = [np.zeros(int(min(SILENCE, model.window) * RATE), dtype=np.float32)]
        return OnnxInternalLM(model, model.hidden(*model.features(heard))[0][0], name)
    if not len(speech):
        raise BadInputError("the internal LM 'mean-encoder' is averaged over speech: give a few utterances")
    hidden, mask = model.hidden(*model.features(speech))
    frames = hidden.flatten(0, 1) if mask is None else hidden[mask]
    return OnnxInternalLM(model, frames.mean(0, keepdim=True), name)


def moonshine(encoder: str | Path, decoder: str | Path, tokenizer: str | Path, threads: int = 1) -> OnnxAttention:
    """Moonshine from its maker's files: encoder, merged decoder, and the JavaScript bundle with the tokenizer."""
    graph = session(Path(decoder), threads)
    size = next(o.shape[2] for o in graph.get_outputs() if o.name == "logits")
    words = HuggingFaceTokenizer(llama_js_tokenizer(Path(tokenizer), int(size)), int(size), SOS, EOS)
    return OnnxAttention(
        Path(encoder), Path(decoder), words, prefix=[SOS], suppress=unwritten(words, EOS), threads=threads
    )
