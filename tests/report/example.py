"""A results file with everything in it that the report can show: two models, tuned weights, audio, stories."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from ilme.data.utterances import Reference
from ilme.evaluation.results import Results, System
from ilme.fusion import FusionWeights
from ilme.tuning.tuner import TuningOptions, tune
from tests.tuning.synthetic_lists import SyntheticDecoder

SENTENCES = """it is a truth universally acknowledged that a single man must be in want of a wife
the whale rose slowly out of the grey water and the men fell silent
there was no possibility of taking a walk that day
she had been forced into prudence in her youth and learned romance as she grew older
the captain walked the quarter deck alone until the lamps were lit
he was not an ill disposed young man unless to be rather cold hearted
the harpooneer stood up in the bow and threw back his shaggy head
nothing could be more obliging than her manner of receiving them
we were now within a league of the island and could smell the land
mister knightley was one of the few people who could see faults in emma
the old parlour smelt of beeswax and of lavender and of rain
call me early he said for the tide will not wait for us""".splitlines()
CONFUSIONS = {
    "whale": "wail", "harpooneer": "harp in ear", "knightley": "nightly", "emma": "dilemma", "quarter": "water",
    "prudence": "prudent", "obliging": "oblige in", "league": "leak", "lavender": "provender", "wife": "life",
    "captain": "captive", "tide": "time", "parlour": "parlor", "romance": "finance", "shaggy": "jagged",
}  # fmt: skip
RATES = {
    "rnnt": {"BS": (0.85, 0.10), "SF": (0.7, 0.085), "DR": (0.55, 0.075), "ILME": (0.22, 0.05)},
    "aed": {"BS": (0.9, 0.13), "SF": (0.65, 0.09), "ILME": (0.4, 0.07)},
}
WEIGHTS = {
    "BS": FusionWeights(),
    "SF": FusionWeights(0.11),
    "DR": FusionWeights(0.31, 0.12),
    "ILME": FusionWeights(0.36, 0.24),
}


def spoil(words: list[str], domain: float, plain: float, g: np.random.Generator) -> str:
    """A hypothesis: domain words go wrong with one probability, others with another."""
    out: list[str] = []
    for word in words:
        rate = domain if word in CONFUSIONS else plain
        if g.random() >= rate:
            out.append(word)
            continue
        kind = g.random()
        if kind < 0.6:
            out.append(CONFUSIONS.get(word, word + "s"))
        elif kind < 0.85:
            pass
        else:
            out += [word, "and"]
    return " ".join(out)


def story(reference: str) -> dict[str, Any]:
    """Scores of the kind that `explain` writes."""
    g = np.random.default_rng(len(reference))
    choices = []
    wrong = " ".join(CONFUSIONS.get(w, w) for w in reference.split())
    for labels, text, gain in (
        (["chosen", "reference"], reference, 0.0),
        (["without subtraction", "without LM"], wrong, -8.0),
    ):
        shares = [
            {
                "piece": f"▁{w}",
                "asr": round(-float(g.gamma(1.0, 0.4)) - (1.6 if w in CONFUSIONS else 0.0), 4),
                "lm": round(-float(g.gamma(2.0, 2.0)), 4),
                "subtracted": round(-float(g.gamma(2.0, 2.2)) - (3.0 if w in CONFUSIONS else 0.0), 4),
            }
            for w in text.split()
        ]
        shares.append({"piece": "", "asr": -0.21, "lm": -1.3, "subtracted": 0.0})
        shares[0]["asr"] += gain
        score = sum(s["asr"] + 0.36 * s["lm"] - 0.24 * s["subtracted"] for s in shares)
        choices.append({"labels": labels, "text": text, "score": round(score, 4), "shares": shares})
    return {"weights": {"lm": 0.36, "subtracted": 0.24, "length": 0.0}, "choices": choices}


def write_example(folder: Path, utterances: int = 60, recordings: int = 3) -> tuple[Path, list[Path]]:
    """results.json and the metrics files of two training runs."""
    g = np.random.default_rng(1)
    references: dict[str, Reference] = {}
    for u in range(utterances):
        text = SENTENCES[u % len(SENTENCES)]
        audio = ""
        if u < recordings:
            audio = str(folder / f"novels-{u:03d}.wav")
            tone = 0.2 * np.sin(np.arange(8000) * (0.1 + 0.02 * u)).astype(np.float32)
            soundfile.write(audio, tone, 16000)
        references[f"novels-{u:03d}"] = Reference(text, f"{100 + u % 9}", 2.0 + len(text) / 14, audio)
    decoder = SyntheticDecoder(noise=2.0)
    systems = []
    for model, methods in RATES.items():
        for method, (domain, plain) in methods.items():
            options = TuningOptions(method=method, beam=6, replicates=4, restarts=2, grid=15)  # type: ignore[arg-type]
            tuning = tune(decoder, decoder.references, options=options, speakers=decoder.speakers)
            hypotheses = {i: spoil(r.text.split(), domain, plain, g) for i, r in references.items()}
            details = {i: story(r.text) for i, r in list(references.items())[:3]} if method == "ILME" else {}
            systems.append(
                System(
                    model=model, method=method, weights=WEIGHTS[method], hypotheses=hypotheses,
                    dev_wer=round(tuning.dev.rate, 2), parameters=134_000_000 if method != "BS" else 76_360_000,
                    seconds=41.0, beam=25, details=details,
                    tuning=None if method == "BS" else replace(tuning, seconds=1.0),
                )
            )  # fmt: skip
    results = Results("novels test", "none", references, tuple(systems), {"seed": 1})
    path = folder / "results.json"
    results.save(path)
    return path, [write_metrics(folder / name, name, slope) for name, slope in (("rnnt", 60.0), ("aed", 420.0))]


def write_metrics(folder: Path, name: str, floor: float) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [{"step": 10, "hours": 0.5, "loss": 3.0}]
    for k in range(1, 40):
        ppl = floor * (1 + 3 * np.exp(-k / 6) + 0.006 * k)
        rows.append({"step": 50 * k, "hours": 2.0 * k, "ilm_ppl": round(float(ppl), 3), "source_lm_ppl": 48.0})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(r) + "\n" for r in rows) + '{"step": 99')
    return folder
