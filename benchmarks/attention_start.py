"""How soon an attention decoder learns to listen: by itself, or with a guide for its attention in the first steps.

    python benchmarks/attention_start.py --out attention-start.json

A small AED on clean synthetic speech, short sentences first, 1,000 word pieces; the cross-entropy of held-out speech.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from first_steps import little_speech
from torch import nn

from ilme import models
from ilme.data.features import FrontendConfig
from ilme.models.aed import AEDConfig
from ilme.models.encoder import EncoderConfig
from ilme.study.language import study_tokenizer
from ilme.study.provenance import commit, versions
from ilme.study.speech import resident_part
from ilme.train.objectives import AedObjective
from ilme.train.optimiser import learning_rate
from ilme.train.options import AedOptions, OptimiserOptions
from ilme.train.resident import ResidentSource

SCHEDULE = OptimiserOptions(rate=2e-3, warmup=50, decay="cosine", final=0.02)


def curve(train: ResidentSource, held_out: list[Any], tokens: Any, guide: int, args: argparse.Namespace) -> list[Any]:
    """[step, seconds so far, held-out loss per unit] every so many steps."""
    torch.manual_seed(args.seed)
    config = AEDConfig(
        encoder=EncoderConfig(
            hidden=args.hidden,
            layers=args.layers,
            bidirectional=True,
            projection=args.hidden,
            time_reduction=2,
            reduce_after=1,
            dropout=0.0,
        ),
        decoder_hidden=args.hidden,
        decoder_layers=1,
        attention=args.hidden,
        filters=8,
        ctc=True,
    )
    model = models.build("aed", config, tokens)
    objective = AedObjective(model, AedOptions(smoothing=0.1, ctc=0.5, guide=guide))
    optimiser = torch.optim.AdamW(model.parameters(), lr=SCHEDULE.rate, betas=(0.9, 0.98))
    batches = _endless(train)
    rows, seconds = [], 0.0
    for step in range(1, args.steps + 1):
        began = time.process_time()
        objective.train().at_step(step)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, args.steps, SCHEDULE)
        batch = next(batches)
        loss = objective(*objective.inputs(batch)) / objective.units(batch)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), SCHEDULE.clip)
        optimiser.step()
        seconds += time.process_time() - began
        if step % args.every == 0:
            rows.append([step, round(seconds), round(_held_out(objective, held_out), 3)])
            print(guide, rows[-1], flush=True)
    return rows


def _endless(source: ResidentSource) -> Any:
    while True:
        yield from source


@torch.no_grad()
def _held_out(objective: AedObjective, batches: list[Any]) -> float:
    objective.eval()
    total = sum(float(objective(*objective.inputs(batch))) for batch in batches)
    return total / sum(int(objective.units(batch)) for batch in batches)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--study", type=Path, default=Path("out/attention-start"), help="where the speech is kept")
    parser.add_argument("--hours", type=float, default=16.0)
    parser.add_argument("--guide", type=int, nargs="+", default=[0, 300], help="steps over which the guide fades")
    parser.add_argument("--steps", type=int, default=800)
    parser.add_argument("--every", type=int, default=50)
    parser.add_argument("--hidden", type=int, default=160)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--batch", type=float, default=120.0, help="seconds of speech in a step")
    parser.add_argument("--longest", type=float, default=12.0, help="longer utterances, in seconds, are left out")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    study, audio = little_speech(args.study, args.hours)
    tokenizer = study_tokenizer(study).for_role("attention")
    shape: dict[str, Any] = {"frontend": FrontendConfig(), "seconds": args.batch, "longest": args.longest}
    kept = resident_part(study, "held-out", "cpu")
    held_out = list(ResidentSource(kept, tokenizer, shuffle=False, **shape))
    rows = []
    for guide in args.guide:
        train = ResidentSource(audio, tokenizer, seed=args.seed, easy_first=True, **shape)
        rows.append({"guide": guide, "curve": curve(train, held_out, tokenizer.tokens, guide, args)})
    report = {
        "what": __doc__.splitlines()[0] if __doc__ else "",
        "command": "benchmarks/attention_start.py",
        "made_with": versions("cpu") | {"commit": commit()},
        "options": {k: v for k, v in vars(args).items() if k not in ("out", "study")},
        "columns": ["step", "CPU seconds", "held-out loss per label or end"],
        "rows": rows,
    }
    args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
