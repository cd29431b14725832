"""Transducers in ONNX as NeMo exports them, RNN-T and TDT: the folders of `model.export()`, onnx-asr and sherpa-onnx.

    model = load_nemo("parakeet-tdt-0.6b-v3-onnx/")

    encoder         audio_signal (B, bands, T), length (B,)                   → outputs (B, E, T'), encoded_lengths (B,)
    decoder_joint   encoder_outputs (B, E, T'), targets (B, U), target_length (B,), input_states_… (layers, B, H)
                                                                  → outputs (B, T', U, V + D), …, output_states_…

sherpa-onnx has two files in place of the second: a decoder (targets, target_length, states → outputs (B, P, U), …) and
a joiner (encoder_outputs, decoder_outputs → outputs). Beside them stands vocab.txt or tokens.txt, the blank last. Where
the joint network gives more than V logits, those are of the durations 0, 1, 2, …: a TDT.

The joint network is cut in memory where the encoder's term and the labels' meet (`ilme.adapters.onnx_cut`).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ilme.adapters.onnx_cut import cut_joint
from ilme.adapters.onnx_frames import number
from ilme.adapters.onnx_session import OnnxGraph, find_graph, read_graph
from ilme.adapters.onnx_transducer import APART, BLANKS, BpeTokenizer, PieceTokenizer, read_tokens
from ilme.data.audio import Samples
from ilme.data.nemo_mel import NemoMel, NemoMelConfig
from ilme.errors import BadInputError, CheckpointError
from ilme.runtime.state import State
from ilme.tokens import Tokenizer

__all__ = ["OnnxNemo", "OnnxNemoTDT", "is_nemo", "load_nemo"]

MOST_DURATIONS = 64
BANDS = 80  # mel bands where neither the graph nor a file says how many
VOCABULARIES = ("vocab.txt", "tokens.txt")
TOKENIZERS = ("tokenizer.model", "bpe.model")


def is_nemo(folder: Path) -> bool:
    """Whether a folder of transducer files is of NeMo: its decoder reads `targets`."""
    if find_graph(folder, "decoder_joint"):
        return True
    decoder = find_graph(folder, "decoder")
    return decoder is not None and any(given.name == "targets" for given in read_graph(decoder).graph.input)


def load_nemo(folder: str | Path, threads: int = 1) -> OnnxNemo:
    """The RNN-T or TDT of a folder; float32 files before int8 ones."""
    folder = Path(folder)
    encoder = find_graph(folder, "encoder")
    if encoder is None:
        raise CheckpointError(f"{folder} has no encoder*.onnx; NeMo's export() writes it beside decoder_joint*.onnx")
    network = _Labels.read(folder, threads)
    tokenizer = _tokenizer(folder)
    extra = network.outputs - len(tokenizer.tokens)
    if extra < 0 or extra > MOST_DURATIONS:
        raise CheckpointError(
            f"{network.path} has {network.outputs} outputs, the inventory {len(tokenizer.tokens)}: {APART}"
        )
    kind = OnnxNemoTDT if extra else OnnxNemo
    return kind(OnnxGraph(encoder, threads), network, tokenizer, _bands(folder))


class OnnxNemo:
    """An RNN-T of NeMo; implements `ilme.protocols.Transducer` on the CPU.

    Args:
        encoder: The encoder's graph.
        network: What is behind it: the prediction network and the joint network.
        tokenizer: Text to ids over the inventory of the joint network's labels, blank included.
        bands: Mel bands, where the encoder's graph leaves them open.
    """

    kind = "onnx-nemo"
    window = 30.0  # seconds of audio at once; these encoders have no limit of their own

    def __init__(self, encoder: OnnxGraph, network: _Labels, tokenizer: Tokenizer, bands: int = BANDS) -> None:
        self.tokenizer, self.tokens = tokenizer, tokenizer.tokens
        self.blank = int(self.tokens.blank or 0)
        self.device = torch.device("cpu")
        self._encoder, self._network = encoder, network
        ranks = tuple(len(shape) for shape in encoder.inputs.values())
        if ranks != (3, 1) or len(encoder.outputs) < 2:
            found = ", ".join(f"{name} {shape}" for name, shape in encoder.inputs.items())
            raise CheckpointError(
                f"{encoder.path} is no encoder of NeMo for whole utterances: its inputs are {found}. Export it without "
                "caches (cache_support=False)"
            )
        said = encoder.metadata
        if said.get("is_giga_am", "0") not in ("", "0"):
            raise CheckpointError(f"{encoder.path} is a GigaAM model, whose features are not made here")
        bands = next(iter(encoder.inputs.values()))[1] or bands
        normalise = said.get("normalize_type", "per_feature") == "per_feature"
        rate = int(number(said.get("sample_rate", "16000"), f"{encoder.path}: sample_rate", 1000, 192_000))
        try:
            self._extractor = NemoMel(NemoMelConfig(feature_size=bands, sampling_rate=rate, normalise=normalise))
        except BadInputError as error:
            raise CheckpointError(f"{encoder.path}: {error}") from error
        self.rate = rate

    def features(self, audio: Sequence[Samples]) -> tuple[Tensor, Tensor]:
        """Log-mel features (B, T, bands) as NeMo makes them, and lengths (B,)."""
        return self._extractor(audio)

    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        if not (self._encoder.scales_by_batch or self._network.scales_by_batch):
            return self._listen(features, lengths)
        alone = [self._listen(x[None, :n], n[None]) for x, n in zip(features, lengths, strict=True)]
        padded = torch.nn.utils.rnn.pad_sequence([f[0] for f, _ in alone], batch_first=True)
        return padded, torch.cat([sizes for _, sizes in alone])

    def _listen(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        given = zip(self._encoder.inputs, (features.transpose(1, 2), lengths), strict=True)
        h, sizes = self._encoder.run(dict(given), list(self._encoder.outputs)[:2])
        f, sizes = self._network.hear(h), sizes.to(torch.int64)
        if f.shape[:2] != (len(features), h.shape[2]) or int(sizes.max()) > f.shape[1]:
            raise CheckpointError(
                f"{self._encoder.path} gave {tuple(h.shape)} for lengths {sizes.tolist()}, of which the joint network "
                f"makes {tuple(f.shape)}: {APART}"
            )
        return f, sizes

    def start(self, n: int) -> tuple[Tensor, State]:
        blank = torch.full((n,), self.blank, dtype=torch.int64)
        return self._network.say(blank, self._network.zeros(n))

    def predict(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        return self._network.say(labels, state)

    def join(self, f: Tensor | None, g: Tensor) -> Tensor:
        return self._network.join(f, g)[:, : len(self.tokens)]


class OnnxNemoTDT(OnnxNemo):
    """A TDT of NeMo; implements `ilme.protocols.DurationTransducer` on the CPU."""

    kind = "onnx-nemo-tdt"

    def __init__(self, encoder: OnnxGraph, network: _Labels, tokenizer: Tokenizer, bands: int = BANDS) -> None:
        super().__init__(encoder, network, tokenizer, bands)
        self.durations = tuple(range(network.outputs - len(self.tokens)))
        if len(self.durations) < 2:
            raise CheckpointError(
                f"{network.path} has {network.outputs} outputs, the inventory {len(self.tokens)}: one more is no TDT"
            )

    def join_durations(self, f: Tensor, g: Tensor) -> tuple[Tensor, Tensor]:
        logits = self._network.join(f, g)
        return logits[:, : len(self.tokens)], logits[:, len(self.tokens) :]


class _Labels:
    """The prediction network and the joint network, in graphs that belong to one term each.

    Args:
        path: The file that errors name.
        decoder: Labels and states to the prediction network's output, or to g at once.
        project: The prediction network's output to g; None if `decoder` gives it.
        heard: Encoder outputs to f.
        together: f and g to logits.
    """

    def __init__(
        self, path: Path, decoder: OnnxGraph, project: OnnxGraph | None, heard: OnnxGraph, together: OnnxGraph
    ) -> None:
        self.path = path
        self._decoder, self._project, self._heard, self._together = decoder, project, heard, together
        self._length = next((n for n in decoder.inputs if "length" in n), None)
        names = [n for n in decoder.inputs if n != self._length]
        self._targets, self._states = names[0], names[1:]
        self._sizes = [self._state_size(name) for name in self._states]
        others = [n for n in decoder.outputs if len(decoder.outputs[n]) == 3 and n != next(iter(decoder.outputs))]
        if len(others) != len(self._states):
            raise CheckpointError(f"{path} reads {len(self._states)} states and gives {len(others)}")
        self._made = [next(iter(decoder.outputs)), *others]
        graphs = [g for g in (decoder, project, heard, together) if g is not None]
        self.scales_by_batch = any(g.scales_by_batch for g in graphs)
        g, _ = self.say(torch.zeros(1, dtype=torch.int64), self.zeros(1))
        self.width = g.shape[1]
        self.outputs = self.join(None, g).shape[1]

    @classmethod
    def read(cls, folder: Path, threads: int) -> _Labels:
        """Of decoder_joint*.onnx, or of decoder*.onnx and joiner*.onnx."""
        joint = find_graph(folder, "decoder_joint")
        if joint is not None:
            parts = cut_joint(read_graph(joint), "encoder_outputs", str(joint))
            heard, said, together = (OnnxGraph(joint, threads, content) for content in parts)
            return cls(joint, said, None, heard, together)
        decoder, joiner = find_graph(folder, "decoder"), find_graph(folder, "joiner")
        if decoder is None or joiner is None:
            raise CheckpointError(f"{folder} has neither decoder_joint*.onnx nor decoder*.onnx and joiner*.onnx")
        parts = cut_joint(read_graph(joiner), "encoder_outputs", str(joiner))
        heard, said, together = (OnnxGraph(joiner, threads, content) for content in parts)
        return cls(joiner, OnnxGraph(decoder, threads), said, heard, together)

    def hear(self, h: Tensor) -> Tensor:
        """Encoder outputs, as the encoder's graph gives them, to f (B, T', J)."""
        (f,) = self._heard.run(dict.fromkeys(self._heard.inputs, h), list(self._heard.outputs))
        return f.float().reshape(*f.shape[:2], -1)

    def say(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        """g (n, J) after one more label (n,), and the states, each (n, layers, H)."""
        given = {self._targets: labels[:, None]}
        given |= {name: x.transpose(0, 1) for name, x in zip(self._states, state, strict=True)}
        if self._length is not None:
            given[self._length] = torch.ones(len(labels), dtype=torch.int64)
        g, *states = self._decoder.run(given, self._made)
        if self._project is not None:
            (g,) = self._project.run(dict.fromkeys(self._project.inputs, g), list(self._project.outputs))
        return g.float().reshape(len(labels), -1), tuple(x.float().transpose(0, 1) for x in states)

    def join(self, f: Tensor | None, g: Tensor) -> Tensor:
        """Logits (n, V + D) of f and g (n, J); the sum is the cut, so a term that is absent is one of zeros."""
        heard = torch.zeros_like(g) if f is None else f.expand_as(g)
        given = zip(self._together.inputs, (heard[:, None, None], g[:, None, None]), strict=True)
        (logits,) = self._together.run(dict(given), list(self._together.outputs))
        return logits.float().reshape(len(g), -1)

    def zeros(self, n: int) -> State:
        return tuple(torch.zeros(n, *size) for size in self._sizes)

    def _state_size(self, name: str) -> tuple[int, int]:
        shape = self._decoder.inputs[name]
        if len(shape) != 3 or shape[0] is None or shape[2] is None or shape[1] is not None:
            raise CheckpointError(
                f"{self.path}: the state {name} {shape} must be (layers, batch, size), and the batch alone be free"
            )
        if shape[0] * shape[2] > 10**7:
            raise CheckpointError(f"{self.path}: the state {name} {shape} is too large")
        return shape[0], shape[2]


def _tokenizer(folder: Path) -> Tokenizer:
    """The inventory, and a sentencepiece model over it if there is one."""
    file = next((folder / name for name in VOCABULARIES if (folder / name).is_file()), None)
    if file is None:
        raise CheckpointError(f"{folder} has neither {' nor '.join(VOCABULARIES)}: a piece and its id on each line")
    tokens = read_tokens(file)
    if tokens.pieces[tokens.blank or 0] not in BLANKS:
        raise CheckpointError(f"{file} names no blank; NeMo's is the last unit: add the line '<blk> {len(tokens)}'")
    model = next((folder / name for name in TOKENIZERS if (folder / name).is_file()), None)
    return PieceTokenizer(tokens) if model is None else BpeTokenizer(model, tokens)


def _bands(folder: Path) -> int:
    """Mel bands as onnx-asr's config.json says."""
    file = folder / "config.json"
    if not file.is_file():
        return BANDS
    try:
        said: Any = json.loads(file.read_text(encoding="utf-8"))
    except (UnicodeDecodeError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} is no JSON: {error}") from error
    bands = said.get("features_size", BANDS) if isinstance(said, dict) else BANDS
    if not isinstance(bands, int) or isinstance(bands, bool) or not 1 <= bands <= 512:
        raise CheckpointError(f"{file}: features_size must be a whole number from 1 to 512, found {bands!r:.40}")
    return bands
