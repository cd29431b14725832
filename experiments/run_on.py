"""Sentences that run on: transcripts with far more words than were said, by method, and what their labels score.

python -m experiments.run_on out/study/paper-more --model aed --setting cross --method ILME \\
    --into docs/results/data/study-paper-more.json

Reads what the stages tune-MODEL-SETTING and test-MODEL-SETTING of a study left; nothing is decoded.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from ilme.evaluation.metrics import measure
from ilme.evaluation.results import Results
from ilme.evaluation.tuning_result import TuningResult

FAR = 5  # words too many


def too_many(reference: str, transcript: str) -> int:
    return len(transcript.split()) - len(reference.split())


def best_transcripts(folder: Path) -> dict[str, dict[str, Any]]:
    """The best hypothesis of each utterance, as the decode was stored."""
    lines = [x for file in sorted(folder.glob("*/part-*.jsonl")) for x in file.read_text("utf-8").splitlines()[1:]]
    return {row["id"]: row["nbest"][0] for row in map(json.loads, lines)}


def label_scores(hypotheses: list[dict[str, Any]]) -> dict[str, float]:
    """Mean log P of a label (and the end) under each scorer; nothing of no hypotheses."""
    labels = sum(len(h["tokens"]) + 1 for h in hypotheses)
    if not labels:
        return {}
    names = {"asr": "model", "lm": "target LM", "subtracted": "internal LM"}
    return {name: round(sum(h["scores"][key] for h in hypotheses) / labels, 2) for key, name in names.items()}


def run_on(study: Path, model: str, setting: str, method: str) -> dict[str, Any]:
    tested = study / f"test-{model}-{setting}"
    results = Results.load(tested / "results.json")
    said = {name: reference.text for name, reference in results.references.items()}
    heard = {system.method: dict(system.hypotheses) for system in results.systems}
    extra = {m: {i: too_many(said[i], texts[i]) for i in said} for m, texts in heard.items()}
    ran_on = {i for i, words in extra[method].items() if words >= FAR}
    rest = [i for i in said if i not in ran_on]
    tuning = TuningResult.load(study / f"tune-{model}-{setting}" / f"{method}.json")
    best = best_transcripts(tested / "test" / method)
    chosen = next(system for system in results.systems if system.method == method)
    return {
        "what": f"{model}, {setting}-domain test: utterances whose transcript has {FAR} or more words too many, how "
        f"many words too many these have, and the test WER without those of {method}; WER of its weights on dev at the "
        "beam of the tuning and at that of the tables; mean log P of a label in its transcripts.",
        "utterances": {m: sum(words >= FAR for words in e.values()) for m, e in extra.items()},
        "words": {m: sum(words for words in e.values() if words >= FAR) for m, e in extra.items()},
        f"WER without those of {method}": {
            m: round(measure({i: said[i] for i in rest}, {i: texts[i] for i in rest}).total.rate, 2)
            for m, texts in heard.items()
        },
        f"labels of {method}": sorted((len(best[i]["tokens"]) for i in ran_on), reverse=True),
        f"dev WER of {method}": {
            f"beam {tuning.beam}": round(tuning.dev.rate, 2),
            "beam of the tables": None if chosen.dev_wer is None else round(chosen.dev_wer, 2),
        },
        f"log P of a label, {method}": {
            "those that run on": label_scores([best[i] for i in ran_on]),
            "the others": label_scores([best[i] for i in rest]),
        },
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study", type=Path)
    parser.add_argument("--model", default="aed")
    parser.add_argument("--setting", default="cross")
    parser.add_argument("--method", default="ILME")
    parser.add_argument("--into", type=Path, required=True, help="the study's results file")
    args = parser.parse_args()
    results = json.loads(args.into.read_text(encoding="utf-8"))
    found = run_on(args.study, args.model, args.setting, args.method)
    results[f"{args.model}, sentences that run on"] = found
    args.into.write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(found, indent=1, ensure_ascii=False))


if __name__ == "__main__":
    main()
