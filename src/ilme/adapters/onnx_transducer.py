"""Transducers in ONNX, as icefall exports them and sherpa-onnx runs them: encoder, decoder and joiner files.

    model = OnnxTransducer.from_folder("zipformer/")
    internal = TransducerInternalLM(model)

    encoder   x (N, T, 80), x_lens (N,)          → encoder_out (N, T', J), encoder_out_lens (N,)
    decoder   y (N, context)                     → decoder_out (N, J)
    joiner    encoder_out (N, J), decoder_out (N, J) → logit (N, V)

The exported encoder and decoder hold their projections, biases included, so the joiner with zeros for `encoder_out` is
the internal LM's J(g) with f_t and b_e both gone (Eqs. 24–26). The decoder is stateless: it reads the last few labels.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ilme.data.audio import Samples
from ilme.data.features import Frontend, FrontendConfig
from ilme.errors import BadInputError, CheckpointError, MissingExtraError
from ilme.runtime.state import State
from ilme.tokens import Tokens

__all__ = ["OnnxTransducer", "PieceTokenizer", "read_tokens", "session"]

# icefall's features: 80 Kaldi filter banks of 25 ms every 10 ms, neither stacked nor normalised.
FEATURES = FrontendConfig(stack=1, stride=1, normalisation="none")
SPACE = "▁"


class PieceTokenizer:
    """Ids to text through a list of word pieces; text to ids by the longest pieces that fit, first to last.

    Exports come without the sentencepiece model, so `encode` may split a word otherwise than training did. Give the
    sentencepiece model to train an LM: `SentencePieceTokenizer`.
    """

    def __init__(self, tokens: Tokens) -> None:
        self._tokens = tokens
        self._ids = {p: i for i, p in enumerate(tokens.pieces) if i not in tokens.special and i != tokens.unk}
        self._longest = max(map(len, self._ids), default=1)

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    def encode(self, text: str) -> list[int]:
        left = "".join(SPACE + word for word in text.split())
        ids: list[int] = []
        while left:
            size = next((n for n in range(min(self._longest, len(left)), 0, -1) if left[:n] in self._ids), 0)
            if size:
                ids.append(self._ids[left[:size]])
            elif self._tokens.unk is not None and left[0] != SPACE:
                ids.append(self._tokens.unk)
            left = left[max(size, 1) :]
        return ids

    def decode(self, ids: list[int]) -> str:
        pieces = (self._tokens.pieces[i] for i in ids if i not in self._tokens.special)
        return "".join(pieces).replace(SPACE, " ").strip()


class OnnxTransducer:
    """Three ONNX files; implements `ilme.protocols.Transducer` on the CPU.

    Args:
        encoder, decoder, joiner: The files.
        tokens: The inventory, blank included.
        threads: Threads of onnxruntime.
    """

    kind = "onnx-transducer"

    def __init__(self, encoder: Path, decoder: Path, joiner: Path, tokens: Tokens, threads: int = 1) -> None:
        if tokens.blank is None:
            raise BadInputError("a transducer needs a blank in its inventory")
        self.tokens = tokens
        self.blank: int = tokens.blank
        self.tokenizer = PieceTokenizer(tokens)
        self.device = torch.device("cpu")
        self._encoder = session(encoder, threads)
        self._decoder = session(decoder, threads)
        self._joiner = session(joiner, threads)
        self.context = self._context_size(decoder)
        self._frontend = Frontend(FEATURES)
        self.width = self._predict(torch.full((1, self.context), tokens.blank)).shape[1]
        size = self.join(None, torch.zeros(1, self.width)).shape[1]
        if size != len(tokens):
            raise CheckpointError(
                f"{joiner} has {size} outputs, the inventory {len(tokens)}: they do not belong together"
            )

    @classmethod
    def from_folder(cls, folder: str | Path, threads: int = 1) -> OnnxTransducer:
        """Finds encoder*.onnx, decoder*.onnx, joiner*.onnx and tokens.txt; float32 files before int8 ones."""
        folder = Path(folder)
        files = [_find(folder, name) for name in ("encoder", "decoder", "joiner")]
        return cls(files[0], files[1], files[2], read_tokens(folder / "tokens.txt"), threads)

    def features(self, audio: Sequence[Samples]) -> tuple[Tensor, Tensor]:
        """Kaldi filter banks (B, T, 80) with frames over the edges, as icefall makes them, and lengths (B,)."""
        return self._frontend([over_the_edges(a) for a in audio])

    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        names = [i.name for i in self._encoder.get_inputs()]
        given = {names[0]: features.float().numpy(), names[1]: lengths.to(torch.int64).numpy()}
        out, sizes = self._encoder.run(None, given)[:2]
        return torch.from_numpy(out), torch.from_numpy(sizes.astype(np.int64))

    def start(self, n: int) -> tuple[Tensor, State]:
        context = torch.full((n, self.context), self.blank, dtype=torch.int64)
        return self._predict(context), context

    def predict(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        context = torch.cat([state[:, 1:], labels[:, None]], 1)
        return self._predict(context), context

    def join(self, f: Tensor | None, g: Tensor) -> Tensor:
        acoustic = torch.zeros_like(g) if f is None else f.expand_as(g)
        names = [i.name for i in self._joiner.get_inputs()]
        given = {names[0]: acoustic.float().contiguous().numpy(), names[1]: g.float().contiguous().numpy()}
        return torch.from_numpy(self._joiner.run(None, given)[0])

    def _predict(self, context: Tensor) -> Tensor:
        name = self._decoder.get_inputs()[0].name
        out = torch.from_numpy(self._decoder.run(None, {name: context.to(torch.int64).numpy()})[0])
        return out.reshape(len(context), -1)

    def _context_size(self, path: Path) -> int:
        """How many labels the decoder reads: from its metadata, or from its input's shape."""
        metadata = self._decoder.get_modelmeta().custom_metadata_map
        shape = self._decoder.get_inputs()[0].shape
        found = metadata.get("context_size") or (shape[1] if len(shape) == 2 and isinstance(shape[1], int) else None)
        if found is None or len(self._decoder.get_inputs()) != 1:
            raise CheckpointError(
                f"{path} is no stateless decoder: one input (N, context) is expected, its inputs are "
                f"{[i.name for i in self._decoder.get_inputs()]}"
            )
        return int(found)


def over_the_edges(samples: Samples) -> Samples:
    """Mirrors both ends so that frames lie centred on every 10 ms, as Kaldi does without `snip_edges`."""
    window, hop = FEATURES.window_samples, FEATURES.hop_samples
    frames = max((len(samples) + hop // 2) // hop, 1)
    left = window // 2 - hop // 2
    right = max((frames - 1) * hop + window - left - len(samples), 0)
    if len(samples) <= max(left, right):
        samples = np.pad(samples, (0, max(left, right) + 1 - len(samples)))
    return np.pad(samples, (left, right), mode="symmetric")


def read_tokens(path: Path) -> Tokens:
    """tokens.txt: a piece and its id on each line. The blank is <blk>, <blank>, <eps> or id 0."""
    if not path.is_file():
        raise CheckpointError(f"{path}: no such file; an exported transducer comes with tokens.txt")
    names: dict[int, str] = {}
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if not line.strip():
            continue
        piece, _, index = line.rpartition(" ")
        if not index.strip().isdigit() or int(index) in names:
            raise CheckpointError(f"{path}, line {number}: expected a piece and an id of its own, got {line!r}")
        names[int(index)] = piece.strip() or " "
    if sorted(names) != list(range(len(names))):
        raise CheckpointError(f"{path}: ids must run from 0 to {len(names) - 1} without gaps")
    pieces = tuple(names[i] for i in range(len(names)))
    blank = next((i for i, p in enumerate(pieces) if p in ("<blk>", "<blank>", "<eps>")), 0)
    unk = next((i for i, p in enumerate(pieces) if p == "<unk>"), None)
    return Tokens(pieces, blank=blank, unk=unk)


def _find(folder: Path, name: str) -> Path:
    found = sorted(folder.glob(f"{name}*.onnx"), key=lambda p: ("int8" in p.name, p.name))
    if not found:
        raise CheckpointError(
            f"{folder} has no {name}*.onnx; give a folder with encoder, decoder, joiner and tokens.txt"
        )
    return found[0]


def session(path: Path, threads: int) -> Any:
    """An onnxruntime session on the CPU."""
    try:
        import onnxruntime
    except ImportError as error:
        raise MissingExtraError("onnxruntime", "onnx") from error

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    try:
        return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime's own kinds share no base class; the cause stays attached
        raise CheckpointError(f"{path} cannot be read as ONNX: {str(error).splitlines()[0]}") from error
