"""An RNN-T of ours as a folder of ONNX files, in icefall's layout.

    export_onnx(ilme.load_model("bundled/rnnt"), Path("rnnt-onnx"))
    model = ilme.load_model("rnnt-onnx")

Before the folder takes its place, what it computes is compared with the network.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ilme.adapters.onnx_transducer import OnnxTransducer
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.errors import BadInputError, CheckpointError
from ilme.models.rnnt import RNNT
from ilme.runtime.files import replace_folder, write_atomically, write_text

__all__ = ["export_onnx"]

FILES = ("encoder.onnx", "decoder.onnx", "joiner.onnx", "tokens.txt", "bpe.model")
TOLERANCE = 1e-3  # on acoustic terms, language terms and logits


@torch.no_grad()
def export_onnx(model: Any, folder: Path) -> float:
    """Writes encoder.onnx, decoder.onnx, joiner.onnx, tokens.txt and, if the model has word pieces, bpe.model.

    Args:
        model: An RNN-T of `ilme train rnnt`, or the bundled one.
        folder: Where to; a folder that was exported before is replaced.

    Returns:
        The largest difference between the folder's numbers and the network's, in terms and logits of noise.
    """
    from ilme.adapters.onnx_writer import decoder_graph, encoder_graph, joiner_graph

    _check_model(model)
    _check_replaceable(folder)
    with replace_folder(folder) as fresh:
        for name, graph in {"encoder": encoder_graph, "decoder": decoder_graph, "joiner": joiner_graph}.items():
            write_atomically(fresh / f"{name}.onnx", graph(model).SerializeToString())
        write_text(fresh / "tokens.txt", "".join(f"{piece} {i}\n" for i, piece in enumerate(_pieces(model))))
        with suppress(BadInputError):  # a network without a tokenizer
            if isinstance(model.tokenizer, SentencePieceTokenizer):
                model.tokenizer.save(fresh / "bpe.model")
        return _compare(model, OnnxTransducer.from_folder(fresh))


def _check_model(model: Any) -> None:
    if not isinstance(model, RNNT):
        kind = getattr(model, "kind", type(model).__name__)
        raise BadInputError(f"only an RNN-T of `ilme train rnnt` can be exported, not a model of kind {kind}")
    if model.config.durations:
        raise BadInputError("a TDT cannot be exported: icefall's layout has no durations")
    if model.frontend.kind != "kaldi" or model.encoder.whisper is not None:
        raise BadInputError(
            "this RNN-T reads Whisper's log-mels, which an ONNX transducer does not take: it takes Kaldi filter banks. "
            "Export one that was trained with frontend.kind=kaldi"
        )


def _check_replaceable(folder: Path) -> None:
    """A folder is replaced only if it was exported before and holds nothing else."""
    if folder.is_dir() and (foreign := sorted(p.name for p in folder.iterdir() if p.name not in FILES)):
        raise BadInputError(f"{folder} holds {foreign[0]}, which no exported folder has: choose another folder")


def _pieces(model: RNNT) -> tuple[str, ...]:
    """The inventory as tokens.txt has it: the blank by icefall's name."""
    return tuple("<blk>" if i == model.tokens.blank else piece for i, piece in enumerate(model.tokens.pieces))


def _compare(model: RNNT, exported: OnnxTransducer) -> float:
    """The largest difference between both; an error if it is not small."""
    if (exported.tokens.pieces, exported.blank) != (_pieces(model), model.tokens.blank):
        raise CheckpointError("tokens.txt cannot hold this model's pieces: one is a special name or has a line break")
    noise = np.random.default_rng(0).standard_normal(2 * model.rate).astype(np.float32)
    audio = [noise, noise[: model.rate]]  # a padded batch
    theirs, frames = exported.encode(*exported.features(audio))
    ours, lengths = model.encode(*model.features(audio))
    if frames.tolist() != lengths.tolist():
        raise CheckpointError(f"the exported encoder gives {frames.tolist()} frames for {lengths.tolist()}")
    labels = torch.arange(2, device=model.device)
    theirs_g, _ = exported.predict(labels.cpu(), exported.start(2)[1])
    ours_g, _ = model.predict(labels, model.start(2)[1])
    pairs = [
        *((theirs[i, :n], ours[i, :n]) for i, n in enumerate(lengths)),
        (theirs_g, ours_g),
        (exported.join(theirs[:, 0], theirs_g), model.join(ours[:, 0], ours_g)),
    ]
    worst = float(torch.stack([(a - b.cpu()).abs().max() for a, b in pairs]).max())
    if not worst < TOLERANCE:  # nan, too
        raise CheckpointError(f"the exported graphs differ from the network by {worst:g}; nothing was written")
    return worst
