"""How soon a deep encoder hears anything: the first steps of CTC after several starts.

    python -m experiments.first_steps --out first-steps.json

Six LSTM layers (or two) over 30 ms frames of clean synthetic speech, short sentences first, 1,000 word pieces. What
text alone can give is the entropy of the pieces: a network whose loss stays there has heard nothing.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import Counter
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import command
from torch import nn

from ilme.data.features import FrontendConfig
from ilme.losses.ctc import ctc_loss, flat_start_loss, unit_widths
from ilme.models.encoder import EncoderConfig, LSTMEncoder, ctc_layer
from ilme.study.config import read_config
from ilme.study.language import study_tokenizer
from ilme.study.provenance import commit, versions
from ilme.study.runner import Study
from ilme.study.speech import resident_part
from ilme.study.stages import build_study
from ilme.tokens import Tokens
from ilme.train.resident import ResidentSource

STARTS: dict[str, dict[str, Any]] = {
    "2 layers, CTC whose blank starts like any unit": {"layers": 2, "blank": False},
    "6 layers, CTC whose blank starts like any unit": {"layers": 6, "blank": False},
    "2 layers, CTC": {"layers": 2},
    "6 layers with torch's first weights, CTC": {"layers": 6, "plain": True},
    "6 layers, CTC": {"layers": 6},
    "6 layers with torch's first weights, flat start": {"layers": 6, "plain": True, "flat": True},
    "6 layers, flat start": {"layers": 6, "flat": True},
}
RATE, WARMUP, CLIP = 2e-3, 20, 5.0


class Listener(nn.Module):
    """The paper's encoder, narrower, with LayerNorm and a CTC layer."""

    def __init__(self, layers: int, hidden: int, tokens: Tokens, plain: bool, blank: bool) -> None:
        super().__init__()
        self.encoder = LSTMEncoder(EncoderConfig(hidden=hidden, layers=layers, dropout=0.0))
        if plain:
            for module in self.encoder.modules():
                if isinstance(module, nn.LSTM):
                    module.reset_parameters()
        self.norm = nn.LayerNorm(hidden)
        self.ctc = ctc_layer(hidden, tokens) if blank else nn.Linear(hidden, len(tokens))


def curve(
    audio: Any,
    tokenizer: Any,
    args: argparse.Namespace,
    layers: int,
    plain: bool = False,
    flat: bool = False,
    blank: bool = True,
) -> list[float]:
    """Loss per label, each a mean over `every` steps; those of a flat start are its own, not CTC's."""
    torch.manual_seed(args.seed)
    source = ResidentSource(
        audio, tokenizer, FrontendConfig(), args.batch, seed=args.seed, easy_first=True, longest=args.longest
    )
    net = Listener(layers, args.hidden, tokenizer.tokens, plain, blank)
    widths = unit_widths(tokenizer.tokens)
    optimiser = torch.optim.AdamW(net.parameters(), lr=RATE, betas=(0.9, 0.98))
    means: list[float] = []
    total = units = step = 0.0
    while step < args.steps:
        for batch in source:
            step += 1
            for group in optimiser.param_groups:
                group["lr"] = RATE * min(1.0, step / WARMUP)
            h, lengths = net.encoder(batch.features, batch.feature_lengths)
            heard = (net.ctc, net.norm(h), lengths, batch.labels, batch.label_lengths, 0)
            loss = flat_start_loss(*heard, widths, late=True) if flat and step <= args.flat else ctc_loss(*heard)
            count = batch.label_lengths.sum()
            optimiser.zero_grad()
            (loss / count).backward()
            nn.utils.clip_grad_norm_(net.parameters(), CLIP)
            optimiser.step()
            total, units = total + float(loss.detach()), units + float(count)
            if step % args.every == 0:
                means.append(round(total / units, 3))
                total = units = 0.0
            if step >= args.steps:
                break
    return means


def entropy(texts: list[str], tokenizer: Any) -> float:
    """H of the word pieces, in nats: what a network that hears nothing can reach."""
    counts = Counter(piece for text in texts for piece in tokenizer.encode(text))
    total = sum(counts.values())
    return -sum(n / total * math.log(n / total) for n in counts.values())


def little_speech(folder: Path, hours: float, pieces: int = 1000) -> tuple[Study, Any]:
    """A study with so many word pieces and hours of clean speech, made where they are not yet in the folder."""
    plan = Path(__file__).parents[1] / "configs" / "study" / "paper.yaml"
    changes = {"speech.hours": hours, "speech.passes": 1, "vocabulary": pieces}
    study = build_study(read_config(plan, changes), folder, "cpu")
    study.run(["speech", "tokenizer"])
    return study, resident_part(study, "train", "cpu")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="rows that it has already are kept")
    parser.add_argument("--study", type=Path, default=Path("out/first-steps"), help="where the speech is kept")
    parser.add_argument("--hours", type=float, default=5.0)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--flat", type=int, default=120, help="steps of a flat start before CTC")
    parser.add_argument("--every", type=int, default=20)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch", type=float, default=80.0, help="seconds of speech in a step")
    parser.add_argument("--longest", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    study, audio = little_speech(args.study, args.hours)
    tokenizer = study_tokenizer(study).for_role("transducer")
    rows = json.loads(args.out.read_text())["rows"] if args.out.is_file() else []
    for name, start in STARTS.items():
        if any(row["start"] == name for row in rows):
            continue
        began = time.perf_counter()
        means = curve(audio, tokenizer, args, **start)
        rows.append({"start": name, "loss": means, "last": means[-1], "seconds": round(time.perf_counter() - began)})
        print(name, means, flush=True)
    report = {
        "what": __doc__.splitlines()[0] if __doc__ else "",
        "command": command(),
        "made_with": versions("cpu") | {"commit": commit()},
        "options": {k: v for k, v in vars(args).items() if k not in ("out", "study")},
        "hours": round(audio.hours, 3),
        "entropy": round(entropy(audio.texts, tokenizer), 3),
        "rows": rows,
    }
    args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
