"""Where a transcript ends: who scores the end, how long an LM's lines are, and a guard against an early end.

python -m experiments.ends --model tiny.en.pt --json docs/results/data/whisper-ends.json --domain \\
    audiobooks:librispeech-dev-clean:tune:novels/*.txt:100 calls:harper-valley-bank:dev:bank.txt:150

Each domain is NAME:SPEECH:SPLIT:TEXT:COUNT. One LM is trained for each way to join the text's lines, and the speech is
decoded with each system of SYSTEMS, all with the weights that `ilme adapt` takes without dev speech. What is asked is
how many words are lost that the model without LM has.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.timing import publish

from ilme.data.utterances import read_utterances
from ilme.evaluation.metrics import measure
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.encoder_cache import EncoderCache
from ilme.recogniser.loading import load_model
from ilme.recogniser.options import default_options
from ilme.recogniser.recogniser import Recogniser
from ilme.workflows.adapt import safe_choice
from ilme.workflows.domain_lm import LMOptions, train_domain_lm

WINDOW = 75.0  # words that are said in a window of thirty seconds
BATCHES = DecodingOptions(batch_seconds=240.0, batch_size=8, cache="none")


@dataclass(frozen=True)
class Way:
    """One system: who scores the end, how the LM's text is joined, which guard, how what is subtracted is smoothed."""

    lm_eos: bool = True
    subtracted_eos: bool = True
    end_margin: float = float("inf")
    joined: float = 0.0
    background: float = 0.0


SYSTEMS = {
    "as it was": Way(),
    "end margin 3": Way(end_margin=3.0),
    "lines of 75 words": Way(joined=WINDOW),
    "end margin 3, lines of 75 words": Way(end_margin=3.0, joined=WINDOW),
    "no LM scores the end": Way(lm_eos=False, subtracted_eos=False),
    "only the added LM scores the end": Way(subtracted_eos=False),
    "only the subtracted LM scores the end": Way(lm_eos=False),
    "a tenth of background": Way(background=0.1),
    "three tenths of background, end margin 3": Way(end_margin=3.0, background=0.3),
    "end margin one and a half": Way(end_margin=1.5),
}


def changes(way: Way) -> dict[str, Any]:
    """What differs from the first system."""
    return {k: v for k, v in asdict(way).items() if v != getattr(Way(), k)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--domain", nargs="+", required=True, help="NAME:SPEECH:SPLIT:TEXT:COUNT")
    parser.add_argument("--systems", nargs="*", default=list(SYSTEMS), help="some of SYSTEMS, by name")
    parser.add_argument("--beam", type=int, default=0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, required=True)
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load_model(args.model)
    model.pack()
    found: dict[str, Any] = {"weights": asdict(safe_choice(model)[1]), "domains": {}}
    for item in args.domain:
        name = item.split(":")[0]
        found["domains"][name] = {}
        for row in rows_of(item, args, model):
            found["domains"][name] |= row
            print(name, json.dumps(row), file=sys.stderr, flush=True)
            publish(found, args.json, seed=args.seed)


def rows_of(item: str, args: argparse.Namespace, model: Any) -> Any:
    """One row after the other: the model without LM, then each system."""
    _, speech, split, text, count = item.split(":")
    known = read_utterances(Path(speech), split=split)
    chosen = random.Random(args.seed).sample(range(len(known)), min(int(count), len(known)))
    utterances = [known[i] for i in sorted(chosen)]
    how, weights = safe_choice(model)
    scorer, cache, options = internal_lm(model, how), EncoderCache(), default_options(model, args.beam)
    lms: dict[float, Any] = {}
    for name in ["without LM", *args.systems]:
        way = SYSTEMS.get(name, Way())
        began, lm, used = time.process_time(), None, FusionWeights()
        if name in SYSTEMS:
            if way.joined not in lms:
                with tempfile.TemporaryDirectory() as place:
                    spoken = [u.text for u in utterances]
                    how_joined = LMOptions(joined=way.joined)
                    lms[way.joined], _ = train_domain_lm(
                        model, [text], spoken, Path(place) / "lm.safetensors", how_joined, lambda line: None
                    )
            lm, used = lms[way.joined], replace(weights, background=way.background)
        search = replace(options, lm_eos=way.lm_eos, subtracted_eos=way.subtracted_eos, end_margin=way.end_margin)
        recogniser = Recogniser(model, lm=lm, subtracted=scorer, options=search, cache=cache)
        lists = SearchDecoder(recogniser, utterances, options=BATCHES).decode(used, search.beam)
        texts = {i: nbest[0].text for i, nbest in lists.items()}
        counts = measure({u.id: u.text for u in utterances}, texts, normaliser_name="whisper").total
        yield {
            name: {
                **changes(way),
                "utterances": len(utterances),
                "words": counts.words,
                "WER": round(counts.rate, 3),
                "substitutions": counts.substitutions,
                "deletions": counts.deletions,
                "insertions": counts.insertions,
                "CPU seconds": round(time.process_time() - began, 1),
            }
        }


if __name__ == "__main__":
    main()
