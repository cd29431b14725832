"""How a joint network starts from what CTC has learnt: the steps after, for several starts.

    python -m experiments.joint_start --out joint-start.json

A small transducer whose joint network is narrower than its vocabulary, as the paper's is, trains CTC alone until it
hears well; from there its joint network starts in each way, and both losses are trained on.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import command
from torch import nn

from experiments.first_steps import little_speech
from ilme import models
from ilme.data.features import FrontendConfig
from ilme.models.encoder import EncoderConfig
from ilme.models.rnnt import RNNTConfig
from ilme.study.language import study_tokenizer
from ilme.study.provenance import commit, versions
from ilme.train import joint_start
from ilme.train.objectives import RnntObjective
from ilme.train.optimiser import learning_rate
from ilme.train.options import OptimiserOptions, RnntOptions
from ilme.train.resident import ResidentSource

# r of ilme.train.joint_start, and whether the learning rate rises once more
STARTS = {
    "r = 0.12": (0.12, False),
    "r = 0.12, the rate rises once more": (0.12, True),
    "r = 0.7": (0.7, False),
    "r = 0.7, the rate rises once more": (0.7, True),
}
SCHEDULE = OptimiserOptions(rate=2e-3, warmup=50, decay="constant")


class Run:
    """A transducer in training: its optimiser, its batches and its step."""

    def __init__(self, audio: Any, tokenizer: Any, args: argparse.Namespace, easy: bool) -> None:
        torch.manual_seed(args.seed)
        config = RNNTConfig(
            encoder=EncoderConfig(hidden=args.hidden, layers=2, dropout=0.0),
            embedding=args.hidden,
            prediction_hidden=args.hidden,
            prediction_layers=1,
            projection=args.hidden,
            joint=args.hidden,
            ctc=True,
        )
        self.model = models.build("rnnt", config, tokenizer.tokens)
        self.optimiser = torch.optim.AdamW(self.model.parameters(), lr=SCHEDULE.rate, betas=(0.9, 0.98))
        self.batches = self._endless(audio, tokenizer, args, easy)
        self.step, self.listen = 0, args.listen

    @staticmethod
    def _endless(audio: Any, tokenizer: Any, args: argparse.Namespace, easy: bool) -> Any:
        source = ResidentSource(
            audio, tokenizer, FrontendConfig(), args.batch, seed=args.seed, easy_first=easy, longest=args.longest
        )
        while True:
            yield from source

    def follow(self, other: Run) -> None:
        """Goes on from where another run is."""
        self.model.load_state_dict(other.model.state_dict())
        self.optimiser.load_state_dict(copy.deepcopy(other.optimiser.state_dict()))
        self.step = other.step

    def train(self, steps: int, rises: bool = True) -> list[float]:
        """Loss per label of each step: CTC's, then the transducer's and half of CTC's."""
        objective = RnntObjective(self.model, RnntOptions(ctc=0.5, listen=self.listen)).train()
        losses = []
        for _ in range(steps):
            self.step += 1
            objective.at_step(self.step)
            rate = learning_rate(self.step, 0, SCHEDULE, again=self.listen if rises else 0)
            for group in self.optimiser.param_groups:
                group["lr"] = rate
            batch = next(self.batches)
            loss = objective(*objective.inputs(batch)) / batch.label_lengths.sum()
            self.optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), SCHEDULE.clip)
            self.optimiser.step()
            losses.append(float(loss.detach()))
        return losses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--study", type=Path, default=Path("out/joint-start"), help="where the speech is kept")
    parser.add_argument("--hours", type=float, default=4.0)
    parser.add_argument("--listen", type=int, default=600, help="steps of CTC alone")
    parser.add_argument("--steps", type=int, default=150, help="steps after it")
    parser.add_argument("--every", type=int, default=25)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--batch", type=float, default=60.0, help="seconds of speech in a step")
    parser.add_argument("--longest", type=float, default=5.0, help="longer utterances, in seconds, are left out")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    study, audio = little_speech(args.study, args.hours)
    tokenizer = study_tokenizer(study).for_role("transducer")
    listener = Run(audio, tokenizer, args, easy=True)
    heard = listener.train(args.listen)
    rows = []
    for name, (r, rises) in STARTS.items():
        began = time.perf_counter()
        joint_start.HEARD = r
        run = Run(audio, tokenizer, args, easy=False)
        run.follow(listener)
        losses = run.train(args.steps, rises)
        means = [sum(losses[i : i + args.every]) / args.every for i in range(0, args.steps, args.every)]
        row = {"start": name, "first": round(losses[0], 3), "highest": round(max(losses), 3)}
        row |= {"loss": [round(mean, 3) for mean in means], "seconds": round(time.perf_counter() - began)}
        rows.append(row)
        print(row, flush=True)
    report = {
        "what": __doc__.splitlines()[0] if __doc__ else "",
        "command": command(),
        "made_with": versions("cpu") | {"commit": commit()},
        "options": {k: v for k, v in vars(args).items() if k not in ("out", "study")},
        "ctc": round(sum(heard[-args.every :]) / args.every, 3),
        "rows": rows,
    }
    args.out.write_text(json.dumps(report, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
