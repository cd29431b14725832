"""An LSTM-LM over Whisper's tokens in a few minutes of one GPU: as good as the clock allows.

python -m benchmarks.whisper_text --model tiny.en.pt --text novels.tar.xz --exclude librispeech-dev-clean --out novels
python -m benchmarks.whisper_lm train --text novels --out out/whisper-lm --minutes 2.2
python -m benchmarks.whisper_lm pack --out out/whisper-lm --to out/packed
python -m benchmarks.whisper_lm unpack --out out/whisper-lm --to out/packed

`train` is `ilme train lm loop.budget=MINUTES` with batches that are cut out of the token file in one piece. `pack`
writes the LM with 8 bits a weight, in files of at most 15 MiB, and says what that costs in perplexity; `unpack` makes a
model of those files again.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ilme import models
from ilme.data.tokenfile import TokenFile
from ilme.models.checkpoint import load_checkpoint, save_model
from ilme.models.lstm_lm import LSTMLM, LSTMLMConfig
from ilme.train.loop import Trainer, make_fabric
from ilme.train.objectives import LmObjective
from ilme.train.options import LmOptions, LoopOptions, OptimiserOptions
from ilme.train.sources import TextBatch, TextSource

PART = 15 << 20  # bytes of a packed file


class SlicedText(TextSource):
    """`TextSource` whose batches are one indexing operation."""

    def load(self, indices: Any) -> TextBatch:
        starts, lengths = self._starts[indices], self._ends[indices] - self._starts[indices]
        at = np.arange(int(lengths.max()))
        rows = self._ids[np.minimum(starts[:, None] + at, len(self._ids) - 1)].astype(np.int64)
        rows[at >= lengths[:, None]] = 0
        return TextBatch([str(i) for i in indices], torch.from_numpy(rows), torch.from_numpy(lengths))


def train(args: argparse.Namespace) -> None:
    text, held = (TokenFile(args.text / f"{name}.tokens") for name in ("train", "valid"))
    torch.set_float32_matmul_precision("high")
    torch.manual_seed(args.seed)
    fabric = make_fabric("auto")
    config = LSTMLMConfig(args.embedding, args.hidden, args.layers, args.dropout)
    model = models.build("lm", config, text.inventory)
    loop = LoopOptions(
        steps=args.steps, budget=args.minutes, evaluate_every=args.steps, save_every=args.steps,
        log_every=100, tensorboard=False, seed=args.seed,
    )  # fmt: skip
    rates = OptimiserOptions(rate=args.rate, warmup=args.warmup, final=0.01, weight_decay=1e-3, clip=1.0)
    source = SlicedText(text, args.tokens, args.longest, seed=args.seed)
    trainer = Trainer(
        args.out,
        LmObjective(model, LmOptions()),
        source,
        lambda: SlicedText(held, args.tokens, args.longest, shuffle=False),
        loop,
        rates,
        lambda trained: save_model(args.out, trained, None),
        None,
        fabric,
    )
    try:
        progress = trainer.run()
    except ModuleNotFoundError as error:  # the picture of the curves comes last; the model is written by then
        if error.name != "matplotlib":
            raise
        progress = trainer.progress
    seen = source.epoch + source.position / max(1, source.count / args.tokens)
    found = {
        "parameters": sum(p.numel() for p in model.parameters()),
        "steps": progress.step,
        "epochs": round(seen, 2),
        "seconds": round(progress.seconds, 1),
        "perplexity per token": None if progress.best is None else round(math.exp(progress.best), 2),
    }
    print(json.dumps(found))
    (args.out / "trained.json").write_text(json.dumps(found) + "\n", encoding="utf-8")


@torch.no_grad()
def perplexity(model: LSTMLM, held: TokenFile, tokens: int) -> float:
    """exp(−log P per token), ends of sentence included."""
    loss, count = 0.0, 0
    objective = LmObjective(model, LmOptions()).eval()
    for batch in SlicedText(held, tokens, shuffle=False):
        batch = batch.to(model.device)
        loss += float(objective(*objective.inputs(batch)))
        count += int(objective.units(batch))
    return math.exp(loss / count)


def pack(args: argparse.Namespace) -> None:
    """Each row r of a matrix as s_r and whole numbers q in −127 … 127, w ≈ s_r q; vectors as they are."""
    model = load_checkpoint(args.out, expect="lm").model
    args.to.mkdir(parents=True, exist_ok=True)
    entries, data = [], bytearray()
    for name, value in unique_parameters(model).items():
        exact = value.float().numpy()
        matrix = exact.ndim == 2
        scale = np.abs(exact).max(axis=1, keepdims=True).clip(1e-12) / 127 if matrix else None
        stored = np.rint(exact / scale).astype(np.int8) if scale is not None else exact
        data += stored.tobytes() + (scale.astype(np.float32).tobytes() if scale is not None else b"")
        entries.append({"name": name, "shape": list(exact.shape), "int8": matrix})
    for old in args.to.glob("lm-*.bin"):
        old.unlink()
    for i, low in enumerate(range(0, len(data), PART)):
        (args.to / f"lm-{i}.bin").write_bytes(data[low : low + PART])
    about = {"config": asdict(model.config), "tokens": model.tokens.to_json(), "entries": entries}
    if args.text is not None:
        held = TokenFile(args.text / "valid.tokens")
        device = "cuda" if torch.cuda.is_available() else "cpu"
        about["perplexity"] = {
            "as trained": round(perplexity(model.to(device).eval(), held, args.tokens), 2),
            "8 bits": round(perplexity(restored(about, bytes(data)).to(device).eval(), held, args.tokens), 2),
        }
        print(json.dumps(about["perplexity"]))
    (args.to / "lm.json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")


def unpack(args: argparse.Namespace) -> None:
    about = json.loads((args.to / "lm.json").read_text(encoding="utf-8"))
    parts = sorted(args.to.glob("lm-*.bin"), key=lambda p: int(p.stem.split("-")[1]))
    save_model(args.out, restored(about, b"".join(p.read_bytes() for p in parts)), None)


def unique_parameters(model: LSTMLM) -> dict[str, torch.Tensor]:
    """Every parameter once: the output matrix is the embedding."""
    return {name: p.detach().cpu() for name, p in model.named_parameters()}


def restored(about: dict[str, Any], data: bytes) -> LSTMLM:
    from ilme.tokens import Tokens

    model = LSTMLM(LSTMLMConfig(**about["config"]), Tokens.from_json(about["tokens"]))
    parameters, at = dict(model.named_parameters()), 0
    for entry in about["entries"]:
        shape, count = entry["shape"], math.prod(entry["shape"])
        stored = np.frombuffer(data, np.int8 if entry["int8"] else np.float32, count, at).reshape(shape)
        at += stored.nbytes
        value = stored.astype(np.float32)
        if entry["int8"]:
            scale = np.frombuffer(data, np.float32, shape[0], at).reshape(-1, 1)
            at += scale.nbytes
            value = value * scale
        parameters[entry["name"]].data.copy_(torch.from_numpy(value))
    return model


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("train", "pack", "unpack"))
    parser.add_argument("--text", type=Path, help="folder of train.tokens and valid.tokens")
    parser.add_argument("--out", type=Path, required=True, help="folder of the LM")
    parser.add_argument("--to", type=Path, help="folder of the packed files")
    parser.add_argument("--minutes", type=float, default=2.0)
    parser.add_argument("--steps", type=int, default=20_000, help="more than the time allows")
    parser.add_argument("--tokens", type=int, default=24_576, help="tokens of a batch")
    parser.add_argument("--longest", type=int, default=160)
    parser.add_argument("--embedding", type=int, default=512)
    parser.add_argument("--hidden", type=int, default=1536)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--dropout", type=float, default=0.1)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--warmup", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    {"train": train, "pack": pack, "unpack": unpack}[args.what](args)


if __name__ == "__main__":
    main()
