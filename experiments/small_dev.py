"""How little dev speech is enough: weights from 5 to 40 utterances, the consensus of lists, and confidences of words.

python -m experiments.small_dev decode --model tiny.en.pt --work out/small-dev \
    --domain calls:harper-valley-bank:dev:calls.safetensors:120 \
    audiobooks:librispeech-dev-clean:tune:novels.safetensors:80
python -m experiments.small_dev measure --work out/small-dev --json docs/results/data/small-dev.json
python -m experiments.small_dev evidence --work work --json docs/results/data/small-dev-evidence.json

`decode` keeps the n-best lists of each domain without LM and with the safe weights, with every score. `measure` draws
small dev sets from them, finds weights on their lists with and without what is expected beforehand, and counts errors
on the utterances that were not drawn, beside those of the safe weights, which need no dev speech. On lists, not in the
search: hypotheses that neither decode found are not there. `evidence` asks of the lists of `experiments.dev_speak`,
dev and test together, when few utterances should be believed: against what is used without dev, which is the consensus
of the lists without LM and with the safe weights.
"""

from __future__ import annotations

import argparse
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from benchmarks.timing import publish

from ilme.data.utterances import read_utterances
from ilme.evaluation.metrics import count_each, normaliser
from ilme.evaluation.significance import sign_test
from ilme.fusion import FusionWeights
from ilme.ilm import internal_lm
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.loading import load_lm, load_model
from ilme.recogniser.options import default_options
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.files import write_json
from ilme.search.consensus import choose, consensus
from ilme.search.hypothesis import Hypothesis, NBest
from ilme.search.rescoring import SequenceScorer, complete
from ilme.tuning.confidence import calibrate
from ilme.tuning.error_surface import as_vector, as_weights, build_lists
from ilme.tuning.temperature import LADDER, USUAL, choose_temperature
from ilme.tuning.tuner import merge_lists
from ilme.tuning.weight_search import Prior, WeightObjective, WeightSpace, search_weights
from ilme.workflows.safe_weights import safe_choice

LONGEST, BEAM, ALPHA = 12.0, 8, 1.0
SIZES, DRAWS, EXPECTED = (5, 10, 20, 40), 40, (0.0, 2.0)
LEVELS = (1.0, 0.2, 0.05)  # 1 believes always
WAYS = ("without LM", "safe weights")
SAFE = FusionWeights(lm=0.25, subtracted=0.125)


def decode(args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    host = load_model(args.model)
    name, safe = safe_choice(host)
    for domain in args.domain:
        title, folder, split, lm, count = domain.split(":")
        short = [u for u in read_utterances(Path(folder), split=split) if u.seconds < LONGEST]
        chosen = [short[i] for i in sorted(random.Random(0).sample(range(len(short)), int(count)))]
        recogniser = Recogniser(
            host, lm=load_lm(lm, host), subtracted=internal_lm(host, name), options=default_options(host, BEAM)
        ).pack()
        ends = recogniser.ends
        found: dict[str, Any] = {"references": {u.id: u.text for u in chosen}}
        for way, weights in zip(WAYS, (FusionWeights(), safe), strict=True):
            batches = DecodingOptions(240.0, 16, cache="none")
            lists = SearchDecoder(recogniser, chosen, options=batches).decode(weights, BEAM)
            scorers = {"lm": recogniser.lm, "subtracted": recogniser.subtracted}
            whole = complete(
                lists, **{n: SequenceScorer(s, finish=ends[n], rows=256) for n, s in scorers.items() if s is not None}
            )
            found[way] = {i: [h.to_json() for h in nbest] for i, nbest in whole.items()}
        write_json(args.work / f"{title}.json", found)


def measure(args: argparse.Namespace) -> None:
    domains, small = [], []
    for file in sorted(args.work.glob("*.json")):
        read = json.loads(file.read_text(encoding="utf-8"))
        references = read["references"]
        lists = {way: {i: [Hypothesis.from_json(h) for h in n] for i, n in read[way].items()} for way in WAYS}
        domains += [listed(file.stem, way, lists[way], references) for way in WAYS]
        domains[-1] |= {"joined": joined_errors(lists, references)}
        small += resampled(file.stem, lists, references)
    publish({"lists": domains, "small dev": small}, args.json, seed=1)


def listed(title: str, way: str, lists: dict[str, NBest], references: dict[str, str]) -> dict[str, Any]:
    taken = choose_temperature(lists, references, "whisper", ALPHA)
    sure = calibrate(lists, references, "whisper", ALPHA)
    after = sure.after or {"NCE": None, "ECE": None}
    return {
        "domain": title,
        "weights": way,
        "utterances": len(lists),
        "errors": {f"{t:g}": e for t, e in taken.errors.items()},
        "temperature": taken.temperature,
        "words": sure.words,
        "NCE": [sure.before["NCE"], after["NCE"]],
        "ECE": [sure.before["ECE"], after["ECE"]],
    }


def joined_errors(lists: dict[str, dict[str, NBest]], references: dict[str, str]) -> dict[str, int]:
    """Errors of the consensus of both lists."""
    normalise = normaliser("whisper")
    said = [normalise(text) for text in references.values()]
    found = {}
    for t in LADDER:
        both = [consensus([lists[way][i] for way in reversed(WAYS)], t, ALPHA)[0].text for i in references]
        found[f"{t:g}"] = sum(c.errors for c in count_each(said, [normalise(text) for text in both]))
    return found


def resampled(title: str, lists: dict[str, dict[str, NBest]], references: dict[str, str]) -> list[dict[str, Any]]:
    merged: dict[str, NBest] = {}
    for way in WAYS:
        merge_lists(merged, lists[way])
    everything = build_lists(merged, references, normaliser_name="whisper", length_exponent=ALPHA)
    draw, safe, rows = np.random.default_rng(1), as_vector(SAFE), []
    for size in SIZES:
        changes: dict[float, list[float]] = {expected: [] for expected in EXPECTED}
        for _ in range(DRAWS):
            dev = np.zeros(len(everything.ids))
            dev[draw.permutation(len(dev))[:size]] = 1
            without_dev = everything.error_at(safe, 1 - dev)
            for expected, found in changes.items():
                objective = WeightObjective(smoothing=0.01, prior=Prior(SAFE.lm, SAFE.subtracted, 0.0, expected))
                best = search_weights(
                    everything, WeightSpace(), objective=objective, starts=[safe], restarts=0, copies=dev
                )
                found.append(100 * (everything.error_at(best.vector, 1 - dev) / without_dev - 1))
        for expected, found in changes.items():
            told = {"mean, %": round(float(np.mean(found)), 2), "worst, %": round(float(np.max(found)), 1)}
            rows.append({"domain": title, "dev utterances": size, "expected, errors": expected, **told})
    return rows


def evidence(args: argparse.Namespace) -> None:
    rows: list[dict[str, Any]] = []
    for work in sorted(p.parent for p in args.work.glob("*/lists.json")):
        found = json.loads((work / "lists.json").read_text(encoding="utf-8"))
        sets = [found["dev"], found["test"]]
        references = {i: text for s in sets for i, text in s["references"].items()}
        lists = {
            way: {i: [Hypothesis.from_json(h) for h in n] for s in sets for i, n in s[old]["lists"].items()}
            for way, old in zip(WAYS, ("none", "safe"), strict=True)
        }
        rows += Believed(references, lists).resampled(work.name)
    publish({"evidence": rows}, args.json, seed=1)


class Believed:
    """Weights and a temperature that a few utterances choose, believed always, or when a sign test says so."""

    def __init__(self, references: dict[str, str], lists: dict[str, dict[str, NBest]]) -> None:
        self.references, self.lists = references, lists
        self.merged: dict[str, NBest] = {}
        for way in WAYS:
            merge_lists(self.merged, lists[way])
        self.built = build_lists(self.merged, references, normaliser_name="whisper", length_exponent=ALPHA)
        self.known: dict[tuple[str, str], int] = {}
        plain, fused = (lists[way] for way in WAYS)
        self.usual = {i: self.errors(i, consensus([fused[i], plain[i]], USUAL, ALPHA)[0].text) for i in references}

    def errors(self, i: str, text: str) -> int:
        if (i, text) not in self.known:
            normalise = normaliser("whisper")
            self.known[i, text] = count_each([normalise(self.references[i])], [normalise(text)])[0].errors
        return self.known[i, text]

    def tuned(self, dev: set[str]) -> dict[str, int]:
        """Errors of each utterance as `ilme adapt` would tune on these, but for a decode with what was found."""
        copies = np.array([float(i in dev) for i in self.built.ids])
        objective = WeightObjective(smoothing=0.01, prior=Prior(SAFE.lm, SAFE.subtracted, 0.0, max(EXPECTED)))
        start = as_vector(SAFE)
        found = search_weights(
            self.built, WeightSpace(), objective=objective, starts=[start], restarts=0, copies=copies
        )
        weights, ranked = as_weights(found.vector), {}
        for i, nbest in self.merged.items():
            scored = [replace(h, score=h.scores.fused(weights) / (len(h.tokens) + 1) ** ALPHA) for h in nbest]
            ranked[i] = sorted(scored, key=lambda h: -h.score)[: len(self.lists[WAYS[0]][i])]
        plain, own = self.lists[WAYS[0]], {i: self.references[i] for i in sorted(dev)}
        heard, beside = ({i: lists[i] for i in own} for lists in (ranked, plain))
        taken = choose_temperature(heard, own, "whisper", ALPHA, plain=beside, expect_joined=True)
        if taken.joined:
            answers = {i: consensus([n, plain[i]], taken.temperature, ALPHA)[0] for i, n in ranked.items()}
        else:
            answers = {i: choose(n, taken.temperature, ALPHA)[0] for i, n in ranked.items()}
        return {i: self.errors(i, h.text) for i, h in answers.items()}

    def resampled(self, title: str) -> list[dict[str, Any]]:
        draw, ids, rows = np.random.default_rng(1), list(self.built.ids), []
        for size in SIZES[1:]:
            changes: dict[float, list[float]] = {level: [] for level in LEVELS}
            for _ in range(DRAWS):
                order = [ids[k] for k in draw.permutation(len(ids))]
                dev, rest = order[:size], order[size:]
                tuned = self.tuned(set(dev))
                better, worse = (sum(sign * (self.usual[i] - tuned[i]) > 0 for i in dev) for sign in (1, -1))
                before, after = (sum(errors[i] for i in rest) for errors in (self.usual, tuned))
                p = sign_test(better, worse)
                for level, found in changes.items():
                    found.append(100 * (after / before - 1) if p <= level else 0.0)
            for level, found in changes.items():
                told = {"mean, %": round(float(np.mean(found)), 2), "worst, %": round(float(np.max(found)), 1)}
                told |= {"best, %": round(float(np.min(found)), 1), "worse": sum(change > 0 for change in found)}
                rows.append({"domain": title, "dev utterances": size, "believed to p": level} | told)
        return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("decode", "measure", "evidence"))
    parser.add_argument("--work", type=Path, required=True, help="folder of the n-best lists")
    parser.add_argument("--model")
    parser.add_argument("--domain", nargs="+", default=[], help="NAME:SPEECH:SPLIT:LM:COUNT")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    {"decode": decode, "measure": measure, "evidence": evidence}[args.what](args)


if __name__ == "__main__":
    main()
