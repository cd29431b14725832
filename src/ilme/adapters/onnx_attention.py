"""Attention models in ONNX that run as they are: an encoder and a merged decoder, as Optimum exports them.

    model = OnnxAttention.from_folder("whisper-tiny-onnx/")     # Whisper or Moonshine, float32 or quantised
    internal = ilme.internal_lm(model, "silence")

    encoder   input_features (B, mels, frames) or input_values (B, samples)   → last_hidden_state (B, T, D)
    decoder   input_ids (n, U), encoder_hidden_states (n, T, D), past_key_values.L.{decoder,encoder}.{key,value},
              use_cache_branch                                                → logits (n, U, V), present.L.….…

Nothing inside such a graph can be replaced, but what the decoder attends to is fed to it. So an internal LM is the same
graph with encoder states that hold no speech: zeros, those of silence, or their mean over speech. What needs the inside
of a layer (`removed`, `mean-context`, `learned`) it cannot give; for those the weights are read out of the graph
(`ilme.adapters.moonshine_onnx`), where they are float32.

Quantised graphs round activations by the range of all rows that are run together. So that a transcript does not depend
on the batch that it was made in, such a graph runs the utterances one by one; the hypotheses of one utterance still run
together, and their scores depend a little on each other.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ilme.adapters.hf import RATE, Audio
from ilme.adapters.moonshine import padded_waves
from ilme.adapters.onnx_folder import Options, bundle_parts, read_parts
from ilme.adapters.onnx_session import OnnxGraph, attention_files, opened
from ilme.errors import BadInputError, CheckpointError
from ilme.runtime.state import State
from ilme.tokens import Tokenizer, Tokens

__all__ = ["OnnxAttention", "moonshine"]

IDS, STATES, CACHED = "input_ids", "encoder_hidden_states", "use_cache_branch"
MASK, POSITIONS = "encoder_attention_mask", "cache_position"  # inputs that some exports have
WAVES, MELS, HEARD = "input_values", "input_features", "attention_mask"
PAST = re.compile(r"past_key_values\.(\d{1,4})\.(?:(decoder|encoder)\.)?(key|value)")
ROOM = 2**30  # bytes of keys, values and logits in one run of the decoder
KEPT = 2**30  # bytes of copied keys and values that are kept between steps


class Run(NamedTuple):
    """Sequences that the decoder reads at once.

    Attributes:
        start, stop: Their utterances.
        frames: Frames that each utterance has.
        each: Sequences of each utterance.
        rows: Where they stand among all sequences.
    """

    start: int
    stop: int
    frames: int
    each: int
    rows: slice


class CacheNames(NamedTuple):
    """How a decoder's graph calls the keys and values of one attention, layer by layer.

    Attributes:
        given: Inputs, past_key_values.….
        found: Outputs, present.….
        shape: (heads, features) of each.
    """

    given: list[str]
    found: list[str]
    shape: list[tuple[int, int]]


class CrossKeys(list[Tensor]):
    """Keys and values (B, heads, T, features) of every cross-attention, with their copies for several sequences.

    The graph wants them once per sequence. Copying takes as long as a step itself, so the latest copies are kept.
    """

    def __init__(self, tensors: Sequence[Tensor] = ()) -> None:
        super().__init__(tensors)
        self._copies: dict[tuple[int, int, int], list[Tensor]] = {}

    def per_sequence(self, run: Run) -> list[Tensor]:
        """Those of the run's utterances, once for each of their sequences."""
        key = (run.start, run.stop, run.each)
        if key not in self._copies:
            copies = [x[run.start : run.stop, :, : run.frames].repeat_interleave(run.each, 0) for x in self]
            while self._copies and _bytes(copies, *self._copies.values()) > KEPT:
                del self._copies[next(iter(self._copies))]  # the oldest
            self._copies[key] = copies
        return self._copies[key]


class OnnxAttention:
    """Two ONNX files; implements `ilme.protocols.AttentionDecoder` on the CPU.

    Args:
        encoder: The encoder. One that reads waveforms gets them one at a time, since padding would change its output.
        decoder: The decoder, merged: with and without a cache in one graph.
        tokenizer: Text to ids, over the inventory of the output layer.
        prefix: Labels that stand before every sequence (start symbol, language, task, prompt).
        suppress: Ids that are never put out.
        suppress_first: Ids that are not put out as the first label.
        max_labels: The longest sequence, without the prefix.
        window: Seconds of audio that the model takes at once.
        extractor: Whisper's feature extractor, for an encoder that reads log-mel spectrograms of a full window.
        threads: Threads of onnxruntime.
    """

    kind = "onnx-attention"
    rate = RATE
    rules = None

    def __init__(
        self,
        encoder: Path | OnnxGraph,
        decoder: Path | OnnxGraph,
        tokenizer: Tokenizer,
        *,
        prefix: Sequence[int],
        suppress: Sequence[int] = (),
        suppress_first: Sequence[int] = (),
        max_labels: int = 194,
        window: float = 30.0,
        extractor: Any = None,
        threads: int = 1,
    ) -> None:
        self._encoder, self._decoder = opened(encoder, threads), opened(decoder, threads)
        self.tokenizer, self.prefix, self.max_labels, self.window = tokenizer, tuple(prefix), max_labels, window
        if max_labels < 1 or not prefix:
            raise BadInputError(f"max_labels={max_labels} and {len(prefix)} labels of prefix: both must be at least 1")
        self.device = torch.device("cpu")
        self._own, self._cross = read_decoder(self._decoder)
        self._input = read_encoder(self._encoder)
        self.fixed_length = self._input == MELS
        self._extractor = extractor
        self._check_features()
        size = len(tokenizer.tokens)
        outside = [i for i in (*prefix, *suppress, *suppress_first) if not 0 <= i < size]
        if outside:
            raise BadInputError(f"{outside[0]} is no id: the model has {size} output units")
        self.allowed, self.allowed_first = mask_of(size, suppress), mask_of(size, [*suppress, *suppress_first])
        frames, self.encoder_width = self._decoder.inputs[STATES][1] or 1, self._width()
        # Zeros give every frame the same keys and values: one frame is as good as many.
        self._without_audio = self.memory(torch.zeros(1, frames, self.encoder_width))
        found = self._without_audio["logits"].shape[1]
        if found != size:
            raise CheckpointError(f"{self._decoder.path} has {found} outputs, the tokenizer {size} tokens")

    @classmethod
    def from_folder(cls, folder: str | Path, options: Options | None = None, threads: int = 1) -> OnnxAttention:
        """Loads Whisper or Moonshine from a folder as Optimum writes it and the hub keeps it.

        The folder has config.json and tokenizer.json; encoder_model*.onnx and decoder_model_merged*.onnx stand beside
        them or in onnx/. Float32 files come before float16 and quantised ones. The package of Moonshine's maker is read
        too: give the folder with the graphs; moonshine*.js lies there or up to three folders above.

        Args:
            folder: The folder.
            options: Language, task and prompt of Whisper, or the options of Moonshine.
            threads: Threads of onnxruntime.
        """
        files = attention_files(Path(folder))
        if files is None:
            raise CheckpointError(
                f"{folder} has no encoder_model*.onnx and decoder_model_merged*.onnx, neither itself nor in onnx/; "
                "export the model with Optimum, decoders merged"
            )
        encoder, decoder = (OnnxGraph(file, threads) for file in files)
        return cls(encoder, decoder, **read_parts(Path(folder), decoder, options)._asdict())

    @property
    def tokens(self) -> Tokens:
        return self.tokenizer.tokens

    def features(self, audio: Sequence[Audio]) -> tuple[Tensor, Tensor]:
        """What the encoder reads, and the lengths (B,) of what holds audio.

        Waveforms, padded (B, samples); or log-mel spectrograms of audio padded to the full window (B, mels, frames).
        """
        if self._extractor is None:
            return padded_waves(audio)
        longest = max(len(a) for a in audio)
        if longest > self.window * RATE + 1:
            raise BadInputError(f"{longest / RATE:.1f} s of audio, but the model takes {self.window:.0f} s at once")
        waves = [np.asarray(a, dtype=np.float32) for a in audio]
        made = self._extractor(waves, sampling_rate=RATE, return_tensors="pt")[MELS]
        return made, torch.tensor([len(a) // self._extractor.hop_length for a in audio])

    def hidden(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor | None]:
        """Encoder states, padded (B, T, D), and a mask (B, T), True where a frame counts; None if all do."""
        if self.fixed_length:
            together = len(features) if self._encoder_takes_batches() else 1
            return torch.cat([self._listen(x) for x in torch.split(features, together)]), None
        states = [self._listen(x[None, :n])[0] for x, n in zip(features, lengths.tolist(), strict=True)]
        padded = torch.nn.utils.rnn.pad_sequence(states, batch_first=True)
        frames = torch.tensor([len(s) for s in states])
        if bool((frames == padded.shape[1]).all()):
            return padded, None
        return padded, torch.arange(padded.shape[1]) < frames[:, None]

    def _encoder_takes_batches(self) -> bool:
        return self._encoder.inputs[self._input][0] is None and not self._encoder.scales_by_batch

    def _listen(self, given: Tensor) -> Tensor:
        """Encoder states (B, T, D) of inputs that need no padding."""
        inputs = {self._input: given}
        if HEARD in self._encoder.inputs:
            inputs[HEARD] = torch.ones(given.shape[0], given.shape[-1])
        (states,) = self._encoder.run(inputs, ["last_hidden_state"])
        return states.float()

    def encode(self, features: Tensor, lengths: Tensor) -> State:
        return self.memory(*self.hidden(features, lengths))

    def memory(self, hidden: Tensor, mask: Tensor | None = None) -> State:
        """Keys and values of every cross-attention, made by the graph as it reads the prefix, which is kept too."""
        frames = torch.full((len(hidden),), hidden.shape[1]) if mask is None else mask.sum(1)
        runs = self._runs(frames, 1, labels=len(self.prefix))
        read = [self.first(hidden[run.rows, : run.frames]) for run in runs]
        longest = int(frames.max())
        padded = [[torch.nn.functional.pad(x, (0, 0, 0, longest - x.shape[2])) for x in cross] for _, _, cross in read]
        return {
            "cross": CrossKeys(_cat_layers(padded)),
            "states": None if self._cross.given else hidden,  # read again at every step
            "frames": frames,
            "logits": torch.cat([logits for logits, _, _ in read]),
            "cache": _cat_layers([cache for _, cache, _ in read]),
        }

    def without_audio(self) -> State:
        """The memory of one utterance, B = 1, whose encoder states are zero."""
        return self._without_audio

    def start(self, memory: State) -> tuple[Tensor, State]:
        return self.normalise(memory["logits"], self.allowed_first), memory["cache"]

    def step(self, labels: Tensor, state: State, memory: State) -> tuple[Tensor, State]:
        each = len(labels) // len(memory["frames"])
        parts = []
        for run in self._runs(memory["frames"], each):
            states = memory["states"]
            if states is not None:
                states = states[run.start : run.stop, : run.frames].repeat_interleave(run.each, 0)
            own = [x[run.rows] for x in state]
            parts.append(self.advance(labels[run.rows], own, memory["cross"].per_sequence(run), states))
        logits = torch.cat([logits for logits, _ in parts])
        return self.normalise(logits, self.allowed), _cat_layers([cache for _, cache in parts])

    def _runs(self, frames: Tensor, each: int, labels: int = 1) -> Iterator[Run]:
        """Cuts `each` sequences per utterance into runs that need no padding and fit into ROOM."""
        lengths = frames.tolist()
        numbers = max(lengths) * sum(h * d for h, d in self._cross.shape) + labels * len(self.tokens)  # per sequence
        fit = max(ROOM // (4 * numbers), 1)
        alike = len(set(lengths)) == 1 and not self._decoder.scales_by_batch
        together, most = max(fit // each, 1) if alike else 1, min(fit, each)
        for start in range(0, len(lengths), together):
            stop = min(start + together, len(lengths))
            for first in range(0, each, most):
                n = min(most, each - first)
                row = start * each + first
                yield Run(start, stop, lengths[start], n, slice(row, row + (stop - start) * n))

    def advance(
        self, labels: Tensor, cache: list[Tensor], cross: list[Tensor], states: Tensor | None = None
    ) -> tuple[Tensor, list[Tensor]]:
        """One more label (n,) of n sequences: logits (n, V) and the new cache.

        Args:
            labels: The labels.
            cache: Keys and values (n, heads, U, features) of the labels so far.
            cross: Keys and values (n, heads, T, features) of the encoder's states.
            states: The encoder's states (n, T, D), for a graph that takes no keys and values of them.
        """
        n = len(labels)
        if states is None:  # not read: the keys and values are known
            frames = cross[0].shape[2] if MASK in self._decoder.inputs else self._decoder.inputs[STATES][1] or 1
            states = torch.zeros(n, frames, self.encoder_width)
        logits, cache, _ = self._decode(labels[:, None], states, cache, cross, self._own.found)
        return logits, cache

    def first(self, hidden: Tensor) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """The prefix over encoder states (B, T, D): logits (B, V), the labels' cache, the cross-attentions' pairs."""
        B = len(hidden)
        own, cross = ([torch.zeros(B, h, 0, d) for h, d in names.shape] for names in (self._own, self._cross))
        prefix = torch.tensor(self.prefix).expand(B, -1)
        return self._decode(prefix, hidden, own, cross, [*self._own.found, *self._cross.found])

    def _decode(
        self, labels: Tensor, states: Tensor, cache: list[Tensor], cross: list[Tensor], wanted: list[str]
    ) -> tuple[Tensor, list[Tensor], list[Tensor]]:
        """Logits (n, V) after the labels (n, U), and of the keys and values those `wanted`: own, cross."""
        past, inputs = cache[0].shape[2], self._decoder.inputs
        given = {IDS: labels, STATES: states}
        given |= dict(zip(self._own.given, cache, strict=True)) | dict(zip(self._cross.given, cross, strict=True))
        if CACHED in inputs:
            given[CACHED] = torch.tensor([past > 0])
        if MASK in inputs:
            given[MASK] = torch.ones(states.shape[:2])
        if POSITIONS in inputs:
            given[POSITIONS] = torch.arange(past, past + labels.shape[1])
        logits, *found = self._decoder.run(given, ["logits", *wanted])
        return logits[:, -1].float(), found[: len(cache)], found[len(cache) :]

    def normalise(self, logits: Tensor, allowed: Tensor) -> Tensor:
        """log softmax over the allowed units (n, V)."""
        return (logits + allowed).log_softmax(-1)

    def _width(self) -> int:
        shape = self._decoder.inputs[STATES]
        if len(shape) != 3 or shape[2] is None:
            raise CheckpointError(f"{self._decoder.path}: {STATES} must be (sequences, frames, width), not {shape}")
        return shape[2]

    def _check_features(self) -> None:
        if self.fixed_length != (self._extractor is not None):
            wanted = "a feature extractor" if self.fixed_length else "waveforms and no feature extractor"
            raise BadInputError(f"{self._encoder.path} reads {self._input}: give {wanted}")
        mels = self._encoder.inputs[self._input][1] if self.fixed_length else None
        if mels is not None and mels != self._extractor.feature_size:
            raise CheckpointError(
                f"{self._encoder.path} reads {mels} mel bands, the feature extractor makes "
                f"{self._extractor.feature_size}: they do not belong together"
            )


def read_encoder(graph: OnnxGraph) -> str:
    """The name of an encoder's input; an error if the graph is no encoder that can be fed."""
    name = next((n for n, rank in ((WAVES, 2), (MELS, 3)) if len(graph.inputs.get(n, ())) == rank), None)
    if name is None or set(graph.inputs) - {name, HEARD} or "last_hidden_state" not in graph.outputs:
        raise CheckpointError(
            f"{graph.path} is no encoder: expected the input {WAVES} (batch, samples) or {MELS} (batch, mels, frames) "
            f"and the output last_hidden_state, found {', '.join(graph.inputs)} and {', '.join(graph.outputs)}"
        )
    return name


def read_decoder(graph: OnnxGraph) -> tuple[CacheNames, CacheNames]:
    """The caches of self-attention and cross-attention; an error if the graph is no merged decoder.

    A graph may do without the cross-attention's cache: it then reads the encoder's states at every step.
    """
    past = sorted((int(m[1]), m[3], m[2] or "decoder", m[0]) for m in map(PAST.fullmatch, graph.inputs) if m)
    others = set(graph.inputs) - {name for *_, name in past}
    own, cross = (
        CacheNames(names, [_present(graph, n) for n in names], [_heads(graph, n) for n in names])
        for names in ([name for *_, part, name in past if part == side] for side in ("decoder", "encoder"))
    )
    layers = range(len(own.given) // 2)
    wanted = [(layer, part) for layer in layers for part in ("key", "value")]
    sides = [[(layer, part) for layer, part, of, _ in past if of == side] for side in ("decoder", "encoder")]
    complete = bool(wanted) and sides[0] == wanted and sides[1] in ([], wanted) and "logits" in graph.outputs
    if not complete or not {IDS, STATES} <= others <= {IDS, STATES, CACHED, MASK, POSITIONS}:
        raise CheckpointError(
            f"{graph.path} is no merged decoder: expected the inputs {IDS}, {STATES}, past_key_values.… and, as a "
            f"rule, {CACHED}; found {', '.join(sorted(others))} and {len(past)} of the cache"
        )
    for name in (IDS, STATES, *own.given, *cross.given):
        if graph.inputs[name][0] is not None:
            raise CheckpointError(
                f"{graph.path} is made for {graph.inputs[name][0]} sequences; export it for any number"
            )
    return own, cross


def _present(graph: OnnxGraph, past: str) -> str:
    """The output that holds what is to be given as the input `past` next time."""
    rest = past.removeprefix("past_key_values")
    found = next((p + rest for p in ("present", "present_key_values") if p + rest in graph.outputs), None)
    if found is None:
        raise CheckpointError(f"{graph.path} is no merged decoder: it takes {past}, but gives back no present{rest}")
    return found


def _heads(graph: OnnxGraph, past: str) -> tuple[int, int]:
    shape = graph.inputs[past]
    if len(shape) != 4 or shape[1] is None or shape[3] is None:
        raise CheckpointError(f"{graph.path}: {past} must be (sequences, heads, labels, features), not {shape}")
    return shape[1], shape[3]


def _bytes(*caches: list[Tensor]) -> int:
    return sum(x.nbytes for cache in caches for x in cache)


def _cat_layers(parts: list[list[Tensor]]) -> list[Tensor]:
    """Layer by layer, the sequences of all parts."""
    return parts[0] if len(parts) == 1 else [torch.cat(layer) for layer in zip(*parts, strict=True)]


def mask_of(size: int, suppress: Sequence[int]) -> Tensor:
    """0 for each unit that may be put out, −∞ for the others (V,)."""
    mask = torch.zeros(size)
    mask[torch.tensor(sorted(set(suppress)), dtype=torch.long)] = -torch.inf
    return mask


def moonshine(encoder: str | Path, decoder: str | Path, tokenizer: str | Path, threads: int = 1) -> OnnxAttention:
    """Moonshine from its maker's files: encoder, merged decoder, and the JavaScript bundle with the tokenizer."""
    graphs = OnnxGraph(Path(encoder), threads), OnnxGraph(Path(decoder), threads)
    return OnnxAttention(*graphs, **bundle_parts(Path(tokenizer), graphs[1])._asdict())
