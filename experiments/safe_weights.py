"""Weights for a domain without dev speech: learned on the dev speech of other domains, and tested by leaving each out.

python -m experiments.safe_weights --model tiny.en.pt --json docs/results/data/safe-weights.json \
    --domain novels:librispeech-dev-clean:tune:novels.safetensors:50 calls:cuts-dev.jsonl.gz::bank.safetensors:80

Each domain is NAME:SPEECH:SPLIT:LM:COUNT. Its speech is decoded once without LM; LM and internal LM score the n-best
lists. The safest weights are those whose worst domain is best: the smallest largest share of the errors that the model
makes without LM. Only internal LMs that need no speech are tried. On lists each domain is then left out in turn and
judged with the weights of the others. The weights of --confirm, and the safest, are at last decoded in the search.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.timing import publish

from ilme.adapters.hf import TransformerAED
from ilme.data.utterances import Utterance, read_utterances
from ilme.evaluation.metrics import Measurement, measure
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.protocols import TokenScorer
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.encoder_cache import EncoderCache
from ilme.recogniser.loading import load_lm, load_model
from ilme.recogniser.options import TRANSFORMER, default_options
from ilme.recogniser.recogniser import Recogniser
from ilme.search.hypothesis import NBest
from ilme.search.rescoring import SequenceScorer, complete, finite
from ilme.tuning.error_surface import CandidateLists, as_vector, build_lists

GRID = [
    FusionWeights(lm=round(lm, 3), subtracted=round(lm * share, 4))
    for lm in np.arange(0.05, 0.61, 0.05)
    for share in (0.5, 0.75, 1.0)
]
BATCHES = DecodingOptions(batch_seconds=240.0, batch_size=8, cache="none")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--domain", nargs="+", required=True, help="NAME:SPEECH:SPLIT:LM:COUNT")
    parser.add_argument("--internal", nargs="+", default=["silence", "zeroed"])
    parser.add_argument("--confirm", nargs="*", default=["silence:0.1:0.1"], help="INTERNAL:λ:μ decoded in the search")
    parser.add_argument("--beam", type=int, default=8)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(args.model)
    model.pack()
    internals = {name: internal_lm(model, name) for name in args.internal}
    domains = [Domain.read(item, args, model, internals) for item in args.domain]
    names = [d.name for d in domains]
    best, shares = safest({d.name: d.shares() for d in domains}, names)
    left_out = {}
    for name in names:
        others = [n for n in names if n != name]
        chosen, _ = safest({d.name: d.shares() for d in domains}, others)
        left_out[name] = {"weights of the others": shown(chosen), "share": shares_of(domains, name)[chosen]}
    confirmed = {}
    for item in dict.fromkeys([*args.confirm, f"{best[0]}:{best[1].lm}:{best[1].subtracted}"]):
        internal, added, removed = item.split(":")
        weights = FusionWeights(lm=float(added), subtracted=float(removed))
        confirmed[item] = {d.name: d.searched(internals[internal], weights, args.beam) for d in domains}
        print(item, json.dumps(confirmed[item]), file=sys.stderr, flush=True)
    report = {
        "search": {k: str(v) for k, v in asdict(TRANSFORMER).items()} | {"beam": args.beam},
        "domains": {d.name: d.row() for d in domains},
        "safest on the lists": {"weights": shown(best), "shares": shares},
        "each left out, on the lists": left_out,
        "in the search": confirmed,
    }
    publish(report, args.json, seed=args.seed)


Choice = tuple[str, FusionWeights]


def shown(choice: Choice) -> dict[str, Any]:
    return {"internal": choice[0], "λ_T": choice[1].lm, "μ": choice[1].subtracted}


def shares_of(domains: list[Domain], name: str) -> dict[Choice, float]:
    return next(d for d in domains if d.name == name).shares()


def safest(shares: dict[str, dict[Choice, float]], domains: list[str]) -> tuple[Choice, dict[str, float]]:
    """The choice whose largest share of errors over the domains is smallest; of equal ones the smallest mean."""
    choices = list(shares[domains[0]])
    best = min(choices, key=lambda c: (max(shares[d][c] for d in domains), sum(shares[d][c] for d in domains)))
    return best, {d: shares[d][best] for d in shares}


@dataclass
class Domain:
    """Dev speech of one domain with its LM, decoded without it."""

    name: str
    utterances: list[Utterance]
    model: TransformerAED
    lm: TokenScorer
    cache: EncoderCache
    plain: Measurement
    lists: dict[str, CandidateLists]  # by internal LM
    seconds: float

    @classmethod
    def read(cls, item: str, args: argparse.Namespace, model: TransformerAED, internals: dict[str, Any]) -> Domain:
        began = time.process_time()
        name, speech, split, lm_file, count = item.split(":")
        found = read_utterances(Path(speech), split=split)
        chosen = random.Random(args.seed).sample(range(len(found)), min(int(count), len(found)))
        utterances = [found[i] for i in sorted(chosen)]
        lm, cache = load_lm(lm_file, model.tokens, "cpu"), EncoderCache()
        recogniser = Recogniser(model, options=default_options(model, args.beam), cache=cache)
        decoded = SearchDecoder(recogniser, utterances, options=BATCHES).decode(FusionWeights(), args.beam)
        plain = measured(utterances, decoded)
        references = {u.id: u.text for u in utterances}
        lists = {}
        for internal, scorer in internals.items():
            scorers = {"lm": SequenceScorer(lm, finish=True), "subtracted": SequenceScorer(scorer, finish=True)}
            filled = finite(complete(decoded, **scorers))
            lists[internal] = build_lists(
                filled, references, normaliser_name="whisper", length_exponent=TRANSFORMER.length_normalisation
            )
        print(name, round(plain.rate, 2), file=sys.stderr, flush=True)
        return cls(name, utterances, model, lm, cache, plain, lists, time.process_time() - began)

    def shares(self) -> dict[Choice, float]:
        """Errors on the lists with each choice, as a share of those without LM."""
        without = self.plain.total.errors
        return {
            (internal, weights): round(lists.error_at(as_vector(weights)) / without, 4)
            for internal, lists in self.lists.items()
            for weights in GRID
        }

    def searched(self, internal: TokenScorer, weights: FusionWeights, beam: int) -> dict[str, Any]:
        recogniser = Recogniser(
            self.model, lm=self.lm, subtracted=internal, options=default_options(self.model, beam), cache=self.cache
        )
        found = measured(
            self.utterances, SearchDecoder(recogniser, self.utterances, options=BATCHES).decode(weights, beam)
        )
        share = round(found.total.errors / self.plain.total.errors, 4)
        return {"WER": round(found.rate, 3), **asdict(found.total), "share": share}

    def row(self) -> dict[str, Any]:
        best: Choice = min(self.shares(), key=lambda c: self.shares()[c])
        return {
            "utterances": len(self.utterances),
            "WER without LM": round(self.plain.rate, 3),
            **asdict(self.plain.total),
            "its own best on the lists": shown(best) | {"share": self.shares()[best]},
            "CPU seconds": round(self.seconds, 1),
        }


def measured(utterances: list[Utterance], lists: dict[str, NBest]) -> Measurement:
    return measure(
        {u.id: u.text for u in utterances},
        {u.id: lists[u.id][0].text for u in utterances},
        normaliser_name="whisper",
    )


if __name__ == "__main__":
    main()
