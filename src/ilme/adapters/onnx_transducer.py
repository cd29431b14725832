"""Transducers in ONNX, as icefall exports them and sherpa-onnx runs them: encoder, decoder and joiner files.

    model = OnnxTransducer.from_folder("zipformer/")
    internal = TransducerInternalLM(model)

    encoder   x (N, T, 80), x_lens (N,)          → encoder_out (N, T', J), encoder_out_lens (N,)
    decoder   y (N, context), states             → decoder_out (N, J), new states
    joiner    encoder_out (N, J), decoder_out (N, J) → logit (N, V)

The exported encoder and decoder hold their projections, biases included, so the joiner with zeros for `encoder_out` is
the internal LM's J(g) with f_t and b_e both gone (Eqs. 24–26). icefall's decoders have no state and read the last few
labels; one that `ilme export onnx` made of an LSTM reads one label and its states, each (N, …). An encoder that was
exported for streaming takes chunks of frames and states (`ilme.adapters.onnx_streaming`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor

from ilme.adapters.onnx_frames import Frames, number
from ilme.adapters.onnx_session import OnnxGraph, find_graph, whole
from ilme.adapters.onnx_streaming import ChunkedEncoder, is_streaming
from ilme.data.audio import Samples
from ilme.data.features import Frontend
from ilme.errors import BadInputError, CheckpointError
from ilme.runtime.state import State
from ilme.tokens import Tokenizer, Tokens

__all__ = ["BpeTokenizer", "OnnxTransducer", "PieceTokenizer", "read_tokens"]

SPACE = "▁"
LONGEST_CONTEXT = 64  # labels; icefall's decoders read one or two
LARGEST_STATE = 10**7  # numbers
APART = "they do not belong together"
BLANKS = ("<blk>", "<blank>", "<eps>")


class PieceTokenizer:
    """Ids to text through a list of word pieces; text to ids by the longest pieces that fit, first to last.

    It may split a word otherwise than training did. An export with its sentencepiece model has a `BpeTokenizer`.
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


class BpeTokenizer:
    """A sentencepiece model over the inventory of tokens.txt: text is split exactly as in training.

    `SentencePieceTokenizer` has its own layout of ids; this one takes any, such as icefall's <blk>, <sos/eos>, <unk>.

    Args:
        path: The sentencepiece model.
        tokens: The inventory; every label must have the same id and name in both, a blank behind them (as NeMo has it)
            in the inventory alone.
    """

    def __init__(self, path: Path, tokens: Tokens) -> None:
        import sentencepiece

        self._tokens = tokens
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.LoadFromSerializedProto(path.read_bytes())
        except (RuntimeError, TypeError) as error:
            raise CheckpointError(f"{path} is no sentencepiece model") from error
        self._check_same(path)

    def _check_same(self, path: Path) -> None:
        theirs = [self._processor.IdToPiece(i) for i in range(self._processor.GetPieceSize())]
        ours = self._tokens.pieces
        if self._tokens.blank == len(theirs):
            theirs.append(ours[-1])
        if len(theirs) != len(ours):
            raise CheckpointError(f"{path} has {len(theirs)} pieces, tokens.txt {len(ours)}: {APART}")
        pairs = enumerate(zip(theirs, ours, strict=True))
        other = next((i for i, (a, b) in pairs if a != b and i != self._tokens.blank), None)  # blank has many names
        if other is not None:
            raise CheckpointError(f"{path} calls id {other} {theirs[other]!r}, tokens.txt {ours[other]!r}: {APART}")

    @property
    def tokens(self) -> Tokens:
        return self._tokens

    def encode(self, text: str) -> list[int]:
        return list(self._processor.EncodeAsIds(text))

    def decode(self, ids: list[int]) -> str:
        return str(self._processor.DecodeIds([int(i) for i in ids if i not in self._tokens.special]))


class OnnxTransducer:
    """Three ONNX files; implements `ilme.protocols.Transducer` on the CPU.

    Args:
        encoder, decoder, joiner: The files.
        tokens: The inventory, blank included.
        threads: Threads of onnxruntime.
        tokenizer: Text to ids over that inventory; `PieceTokenizer` if not given.
    """

    kind = "onnx-transducer"
    window = 30.0  # seconds of audio at once; these encoders have no limit of their own

    def __init__(
        self,
        encoder: Path,
        decoder: Path,
        joiner: Path,
        tokens: Tokens,
        threads: int = 1,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if tokens.blank is None:
            raise BadInputError("a transducer needs a blank in its inventory")
        self.tokens = tokens
        self.blank: int = tokens.blank
        self.tokenizer: Tokenizer = tokenizer or PieceTokenizer(tokens)
        self.device = torch.device("cpu")
        self._encoder, self._decoder, self._joiner = (OnnxGraph(path, threads) for path in (encoder, decoder, joiner))
        self.chunks = ChunkedEncoder(self._encoder) if is_streaming(self._encoder) else None
        if self.chunks is None:
            _check_form(self._encoder, "encoder", inputs=(3, 1), outputs=2)
        _check_form(self._joiner, "joiner", inputs=(2, 2), outputs=1)
        self._frames = Frames.read(self._encoder.metadata, encoder)
        mels, banks = next(iter(self._encoder.inputs.values()))[2], self._frames.banks
        if mels not in (None, banks.mel_bins):
            raise CheckpointError(
                f"{encoder} reads {mels} features a frame; {banks.mel_bins} filter banks are made here"
            )
        self.rate = banks.rate
        self._frontend = Frontend(banks)
        self._states = self._state_sizes()
        self.context = self._context_size()
        self.width = self._check_states()
        size = self.join(None, torch.zeros(1, self.width)).shape[1]
        if size != len(tokens):
            raise CheckpointError(f"{joiner} has {size} outputs, the inventory {len(tokens)}: {APART}")

    @classmethod
    def from_folder(cls, folder: str | Path, threads: int = 1) -> OnnxTransducer:
        """Finds encoder*.onnx, decoder*.onnx, joiner*.onnx and tokens.txt; float32 files before int8 ones.

        A sentencepiece model bpe.model, if it is there, splits text into pieces.
        """
        folder = Path(folder)
        files = [_find(folder, name) for name in ("encoder", "decoder", "joiner")]
        tokens = read_tokens(folder / "tokens.txt")
        bpe = folder / "bpe.model"
        tokenizer = BpeTokenizer(bpe, tokens) if bpe.is_file() else None
        return cls(files[0], files[1], files[2], tokens, threads, tokenizer)

    def features(self, audio: Sequence[Samples]) -> tuple[Tensor, Tensor]:
        """Kaldi filter banks (B, T, 80) as the encoder's file asks for, and lengths (B,)."""
        return self._frontend([self._frames.prepare(a) for a in audio])

    def encode(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        if not self._encoder.scales_by_batch:
            return self._listen(features, lengths)
        alone = [self._listen(x[None, :n], n[None]) for x, n in zip(features, lengths, strict=True)]
        padded = torch.nn.utils.rnn.pad_sequence([f[0] for f, _ in alone], batch_first=True)
        return padded, torch.cat([sizes for _, sizes in alone])

    def _listen(self, features: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        if self.chunks is not None:
            return self.chunks(features, lengths)
        out, sizes = _call(self._encoder, features, lengths, outputs=2)
        return out.float(), sizes.to(torch.int64)

    def start(self, n: int) -> tuple[Tensor, State]:
        states = tuple(torch.zeros(n, *size) for size in self._states)
        return self._predict(torch.full((n, self.context), self.blank, dtype=torch.int64), states)

    def predict(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        context, *states = state
        return self._predict(torch.cat([context[:, 1:], labels[:, None]], 1), states)

    def join(self, f: Tensor | None, g: Tensor) -> Tensor:
        acoustic = torch.zeros_like(g) if f is None else f.expand_as(g)
        return _call(self._joiner, acoustic, g)[0].float()

    def _predict(self, context: Tensor, states: Sequence[Tensor]) -> tuple[Tensor, State]:
        """g (n, J) of the last labels (n, context) and the decoder's states; the state is both."""
        g, *states = _call(self._decoder, context, *states, outputs=1 + len(self._states))
        return g.float().reshape(len(context), -1), (context, *(x.float() for x in states))

    def _state_sizes(self) -> list[tuple[int, ...]]:
        """The size of each of the decoder's states for one label sequence; none if it is stateless."""
        graph = self._decoder
        shapes = list(graph.inputs.values())[1:]
        _check_form(graph, "decoder", inputs=(2, *map(len, shapes)), outputs=1 + len(shapes))
        sizes = [tuple(d for d in shape[1:] if d is not None) for shape in shapes]
        for shape, size in zip(shapes, sizes, strict=True):
            if shape != (None, *size):
                raise CheckpointError(f"{graph.path}: a state {shape} must be free in the first size, and only there")
            whole(math.prod(size), f"{graph.path}: the numbers in a state {shape}", 1, LARGEST_STATE)
        return sizes

    def _check_states(self) -> int:
        """The size of g; an error unless the decoder gives back states of the sizes that it reads."""
        g, (_, *states) = self.start(1)
        made = [tuple(x.shape[1:]) for x in states]
        if made != self._states:
            raise CheckpointError(f"{self._decoder.path} reads states of sizes {self._states}, but gives {made}")
        return g.shape[1]

    def _context_size(self) -> int:
        """How many labels the decoder reads: from its metadata, or from its input's shape."""
        path, shape = self._decoder.path, next(iter(self._decoder.inputs.values()))
        written = self._decoder.metadata.get("context_size")
        if written is None:
            return whole(shape[1], f"{path}: the context of its input {shape}", 1, LONGEST_CONTEXT)
        size = int(number(written, f"{path}: context_size", 1, LONGEST_CONTEXT))
        if shape[1] not in (None, size):
            raise CheckpointError(f"{path} says context_size={size}, but reads {shape[1]} labels")
        return size


def _check_form(graph: OnnxGraph, what: str, inputs: tuple[int, ...], outputs: int) -> None:
    """An error unless the graph has inputs of these ranks, and enough outputs."""
    ranks = tuple(len(shape) for shape in graph.inputs.values())
    if ranks != inputs or len(graph.outputs) < outputs:
        found = ", ".join(f"{name} {shape}" for name, shape in graph.inputs.items())
        raise CheckpointError(
            f"{graph.path} is no {what} of an icefall transducer: its inputs are {found}. An encoder that takes states "
            "must say T and decode_chunk_len in its metadata, as icefall's streaming exports do"
        )


def _call(graph: OnnxGraph, *given: Tensor, outputs: int = 1) -> list[Tensor]:
    """The first outputs for the inputs in their order; exports differ in the names."""
    return graph.run(dict(zip(graph.inputs, given, strict=True)), list(graph.outputs)[:outputs])


def read_tokens(path: Path) -> Tokens:
    """tokens.txt: a piece and its id on each line. The blank is <blk>, <blank>, <eps> or id 0.

    The symbols #0, #1, … at the end are for lexicons: no model puts them out, so they are left away.
    """
    try:
        lines = path.read_text(encoding="utf-8").split("\n")
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: no such file; an exported transducer comes with tokens.txt") from error
    except UnicodeDecodeError as error:
        raise CheckpointError(f"{path} is not UTF-8: {error}") from error
    names: dict[int, str] = {}
    for at, line in enumerate(lines, 1):
        if not line.strip():
            continue
        piece, _, index = line.strip().rpartition(" ")
        if not re.fullmatch("[0-9]{1,9}", index) or int(index) in names:
            raise CheckpointError(f"{path}, line {at}: expected a piece and an id of its own, got {line!r:.60}")
        names[int(index)] = piece.strip() or " "
    if not names or sorted(names) != list(range(len(names))):
        raise CheckpointError(f"{path}: ids must run from 0 to {max(len(names) - 1, 0)} without gaps")
    while re.fullmatch("#[0-9]+", names[len(names) - 1]) and len(names) > 1:
        del names[len(names) - 1]
    pieces = tuple(names[i] for i in range(len(names)))
    blank = next((i for i, p in enumerate(pieces) if p in BLANKS), 0)
    unk = next((i for i, p in enumerate(pieces) if p == "<unk>"), None)
    if blank == unk:
        raise CheckpointError(f"{path} names no blank, which is <blk> and has an id of its own")
    return Tokens(pieces, blank=blank, unk=unk)


def _find(folder: Path, name: str) -> Path:
    found = find_graph(folder, name)
    if found is None:
        raise CheckpointError(
            f"{folder} has no {name}*.onnx; give a folder with encoder, decoder, joiner and tokens.txt"
        )
    return found
