"""Calls to a bank as their manifest gives them, badly cut ones and all: do the weights that `ilme adapt` finds help?

python -m experiments.bank_as_given sets harper-valley-bank --out bank --test 500
cd bank
ilme adapt --model tiny.en.pt --text train.txt --dev dev.jsonl --limit 0 --out default
ilme adapt --model tiny.en.pt --text train.txt --dev dev.jsonl --limit 0 --options.style fold --options.overlap 0 \
    --out fold
ilme evaluate tiny.en.pt test.jsonl eval/bs --method BS --normaliser whisper --label tiny.en
ilme evaluate default test.jsonl eval/default --domain --method ILME --normaliser whisper --label tiny.en
ilme evaluate fold test.jsonl eval/fold --domain --method ILME-fold --normaliser whisper --label tiny.en
python -m experiments.bank_as_given report . --json docs/results/data/whisper-bank-as-given.json

`sets` takes the text of the split train, the first 120 utterances of dev and the first of test, in the manifest's
order, of those with at least four words. `report` compares each system with the first, on what was decoded once; and
again on the utterances that `experiments.whisper_bank` calls well timed, by their sound alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.timing import publish

from experiments.whisper_bank import well_timed
from ilme.data.utterances import read_utterances
from ilme.evaluation.metrics import Measurement, measure
from ilme.evaluation.results import Results, merge_results
from ilme.evaluation.significance import bootstrap_interval, compare

DEV, FEWEST_WORDS = 120, 4
FOLDERS = {"BS": "", "ILME": "default", "ILME-fold": "fold"}  # of a system's weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("sets", "report"))
    parser.add_argument("folder", type=Path, help="the corpus; for report what `sets` and ilme wrote")
    parser.add_argument("--out", type=Path, default=Path("bank"))
    parser.add_argument("--test", type=int, default=0, help="utterances of the test split; 0 takes all")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    if args.what == "sets":
        write_sets(args.folder, args.out, args.test)
    else:
        publish(report(args.folder), args.json, seed=0)


def write_sets(corpus: Path, out: Path, test: int) -> None:
    """train.txt, dev.jsonl and test.jsonl."""
    out.mkdir(parents=True, exist_ok=True)
    text = [row["text"] for row in rows(corpus) if row["split"] == "train"]
    (out / "train.txt").write_text("".join(f"{line}\n" for line in text), encoding="utf-8")
    for split, count in (("dev", DEV), ("test", test or None)):
        chosen = [r for r in rows(corpus) if r["split"] == split and len(r["text"].split()) >= FEWEST_WORDS][:count]
        lines = (json.dumps({**r, "audio_filepath": str(corpus.resolve() / r["audio_filepath"])}) for r in chosen)
        (out / f"{split}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def rows(corpus: Path) -> Iterator[dict[str, Any]]:
    with (corpus / "manifest.jsonl").open(encoding="utf-8") as lines:
        yield from map(json.loads, lines)


def report(folder: Path) -> dict[str, Any]:
    """Dev as adaptation measured it, and test with every system against the first."""
    files = {name: folder / "eval" / (path or "bs") / "results.json" for name, path in FOLDERS.items()}
    merged = merge_results([Results.load(path) for path in files.values() if path.exists()], "harper-valley-bank, test")
    timed = [u for u in read_utterances(folder / "test.jsonl") if well_timed(u)]
    texts, speakers = {u.id: u.text for u in timed}, {u.id: u.speaker for u in timed}
    measured, well = {}, {}
    for system in merged.systems:
        said = {i: system.hypotheses[i] for i in texts}
        measured[system.method] = merged.measurements[system.name]
        well[system.method] = measure(texts, said, speakers=speakers, normaliser_name=merged.normaliser)
    systems = []
    for system in merged.systems:
        name = system.method
        systems.append(
            {
                "system": name,
                "test": row(measured[name]) | against(measured, name),
                "well timed": row(well[name]) | against(well, name),
                "weights": asdict(system.weights),
                "oracle WER": system.oracle_wer,
                "adaptation": adaptation(folder / FOLDERS[name]) if FOLDERS[name] else None,
            }
        )
    manifest = [json.loads(line) for line in (folder / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    return {
        "utterances": {
            "test": len(manifest),
            "well timed": len(timed),
            "hours": round(sum(r["duration"] for r in manifest) / 3600, 3),
            "calls": len({r["call"] for r in manifest}),
            "speakers": len({r["speaker"] for r in manifest}),
        },
        "systems": systems,
    }


def against(measured: dict[str, Measurement], name: str) -> dict[str, float]:
    """The errors of a system against those without an LM."""
    if name == "BS":
        return {}
    pair = compare(name, measured[name], "BS", measured["BS"])
    return {"errors against BS": round(-pair.relative, 1), "p": pair.p_bootstrap, "p MAPSSWE": pair.p_mapsswe or 0.0}


def row(measured: Measurement) -> dict[str, Any]:
    interval = bootstrap_interval(measured)
    counts = {k: v for k, v in asdict(measured.total).items() if k != "hits"}
    return {"WER": round(measured.rate, 3), "low": round(interval.low, 2), "high": round(interval.high, 2), **counts}


def adaptation(folder: Path) -> dict[str, Any]:
    """What the card says of the text, of dev and of what was set aside, without names of files."""
    card = json.loads((folder / "domain.json").read_text(encoding="utf-8"))
    found = card["report"]
    kept = ("dev utterances", "before", "after", "relative", "p (paired bootstrap)", "decodes", "seconds")
    aside = {Path(name).name: reason for name, reason in found.get("set aside", {}).items()}
    return {
        "style": card["style"], "internal": card["internal"], "text": found["text"],
        **{name: found[name] for name in kept}, "set aside": aside,
    }  # fmt: skip


if __name__ == "__main__":
    main()
