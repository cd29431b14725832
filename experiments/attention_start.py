"""How soon an attention decoder learns to listen, after several starts.

    python -m experiments.attention_start --out attention-start.json

A small AED on clean synthetic speech, short sentences first, 200 word pieces. Of held-out speech: the decoder's and
CTC's loss per label, and the share of the attention that lies within two frames of where CTC puts the next label.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import command
from torch import Tensor, nn

from experiments.first_steps import little_speech
from ilme import models
from ilme.data.features import FrontendConfig
from ilme.losses.ctc import ctc_loss
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
PACE = 3  # frames of 60 ms; `frames per label` in the report says how many a label lasts
STARTS: dict[str, dict[str, Any]] = {
    "by itself": {},
    "pace": {"pace": PACE},
    "CTC alone for 200 steps, then pace": {"pace": PACE, "listen": 200},
    "CTC alone for 200 steps, then pace and guide": {"pace": PACE, "listen": 200, "guide": 400},
}


def curve(train: ResidentSource, held_out: list[Any], tokens: Any, start: dict[str, Any], args: Any) -> list[Any]:
    """[step, CPU seconds so far, losses] every so many steps."""
    torch.manual_seed(args.seed)
    encoder = EncoderConfig(
        hidden=args.hidden, layers=2, bidirectional=True, projection=args.hidden, time_reduction=2, reduce_after=1,
        dropout=0.0,
    )  # fmt: skip
    config = AEDConfig(
        encoder=encoder, decoder_hidden=args.hidden, decoder_layers=1, attention=args.hidden, filters=8, ctc=True,
        pace=start.get("pace", 0),
    )  # fmt: skip
    model = models.build("aed", config, tokens)
    options = AedOptions(smoothing=0.1, ctc=0.5, **{name: start[name] for name in start if name != "pace"})
    objective = AedObjective(model, options)
    optimiser = torch.optim.AdamW(model.parameters(), lr=SCHEDULE.rate, betas=(0.9, 0.98))
    batches = _endless(train)
    rows, seconds = [], 0.0
    for step in range(1, args.steps + 1):
        began = time.process_time()
        objective.train().at_step(step)
        for group in optimiser.param_groups:
            group["lr"] = learning_rate(step, args.steps, SCHEDULE, again=options.listen)
        batch = next(batches)
        loss = objective(*objective.inputs(batch)) / objective.units(batch)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), SCHEDULE.clip)
        optimiser.step()
        seconds += time.process_time() - began
        if step % args.every == 0:
            rows.append([step, round(seconds), *_held_out(objective, held_out)])
            print(start, rows[-1], flush=True)
    return rows


def _endless(source: ResidentSource) -> Any:
    while True:
        yield from source


@torch.no_grad()
def _held_out(objective: AedObjective, batches: list[Any]) -> list[float]:
    """The decoder's loss, CTC's, and the share of the attention that is near, each per label or end of sentence."""
    model, total, units = objective.eval().model, torch.zeros(3), 0
    for batch in batches:
        heard, frames, attention, _ = objective.body()(batch.features, batch.feature_lengths, batch.labels)
        spoken = (batch.labels, batch.label_lengths)
        total += torch.stack(
            [
                objective(*objective.inputs(batch)),
                ctc_loss(model.ctc, heard, frames, *spoken, objective.auxiliary.blank),
                _near(attention, objective.auxiliary.places(heard, frames, *spoken), batch.label_lengths),
            ]
        )
        units += int(objective.units(batch))
    return [round(value, 3) for value in (total / units).tolist()]


def _near(attention: Tensor, places: Tensor, label_lengths: Tensor) -> Tensor:
    """The attention (B, U+1, T) that lies within two frames of the labels' places (B, U), summed."""
    away = torch.arange(attention.shape[2]) - places[..., None]
    labelled = torch.arange(places.shape[1]) < label_lengths[:, None]
    return ((attention[:, :-1] * (away.abs() <= 2)).sum(-1) * labelled).sum()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="rows that it has already are kept")
    parser.add_argument("--only", nargs="+", default=list(STARTS), choices=list(STARTS))
    parser.add_argument("--study", type=Path, default=Path("out/attention-start"), help="where the speech is kept")
    parser.add_argument("--hours", type=float, default=16.0)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--every", type=int, default=100)
    parser.add_argument("--hidden", type=int, default=128)
    parser.add_argument("--batch", type=float, default=60.0, help="seconds of speech in a step")
    parser.add_argument("--longest", type=float, default=5.0, help="longer utterances, in seconds, are left out")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    study, audio = little_speech(args.study, args.hours, 200)
    tokenizer = study_tokenizer(study).for_role("attention")
    shape: dict[str, Any] = {"frontend": FrontendConfig(), "seconds": args.batch, "longest": args.longest}
    held_out = list(ResidentSource(resident_part(study, "held-out", "cpu"), tokenizer, shuffle=False, **shape))
    kept = json.loads(args.out.read_text(encoding="utf-8"))["rows"] if args.out.is_file() else []
    rows = {row["start"]: row for row in kept}
    for name in args.only:
        train = ResidentSource(audio, tokenizer, seed=args.seed, easy_first=True, **shape)
        rows[name] = {"start": name, "curve": curve(train, held_out, tokenizer.tokens, STARTS[name], args)}
    frames = len(audio.samples) / audio.rate / 0.06
    report = {
        "what": __doc__.splitlines()[0] if __doc__ else "",
        "command": command(),
        "made_with": versions("cpu") | {"commit": commit()},
        "options": {k: v for k, v in vars(args).items() if k not in ("out", "study", "only")},
        "frames per label": round(frames / sum(len(ids) for ids in tokenizer.encode_many(audio.texts)), 2),
        "columns": ["step", "CPU seconds", "decoder", "CTC", "attention near"],
        "rows": [rows[name] for name in STARTS if name in rows],
    }
    args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
