"""The small study's networks, as they are bundled, with target LMs of less and of more text.

    python -m experiments.more_text run out/more-text SF ILME --lm 14M=mix.json --source-bigram source.safetensors
    python -m experiments.more_text gather out/more-text docs/results/data/more-text.json --what "…"
    python -m experiments.more_text draw docs/results/data/more-text.json docs/results/images/more-text.svg

As in the study: every method is tuned on the 400 target dev utterances in as many decodes, beam 8, and the 1,000 test
utterances are decoded once, beam 25. `run` can be stopped and started again, and several may share a folder, with a
method or an LM each. It needs the dev and test sets of `ilme study configs/study/small.yaml --only sets`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments.study_results import pairs, rows
from ilme.data.utterances import Utterance, read_utterances, references_of
from ilme.evaluation.metrics import measure
from ilme.evaluation.results import Results, System, merge_results
from ilme.evaluation.tuning_result import Method, TuningResult, TuningStep
from ilme.lm.mixing import is_mixture, read_mixture
from ilme.lm.perplexity import perplexity
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.loading import Parts, describe, load_lm, load_recogniser
from ilme.study.config import DecodingPlan, read_config
from ilme.study.decoding import search_options
from ilme.study.provenance import commit, versions
from ilme.tuning.tuner import TuningOptions
from ilme.tuning.weight_search import WeightSpace
from ilme.workflows.bundle import Unpacked, read_bundle
from ilme.workflows.evaluate import Plan, evaluate_decoder
from ilme.workflows.tune import tune_decoder

PLAN = Path("configs/study/small.yaml")
DECODING = DecodingOptions(batch_seconds=600.0, batch_size=16)
ORDER = read_config(PLAN).decoding.methods  # of the rows
STUDY = Path("docs/results/data/study-small.json")
LINES = {  # of the picture: method, colour, name
    "SF": ("#777777", "Shallow Fusion"),
    "ILME": ("#56a0d3", "ILME"),
    "ILME-learned": ("#0b4f8a", "ILME-learned"),
}
COMMAND = "python -m experiments.more_text run FOLDER METHOD… --lm NAME=FILE"
WIDE = (0.0, 1.5)  # the range of λ_T and μ: with a good LM both go beyond the study's 1


def parts_of(unpacked: Unpacked, model: str, method: str, lm: str, bigram: str) -> Parts:
    """The bundle's files with another LM."""
    if method == "LODR":
        return replace(unpacked.parts(model, "SF"), lm=lm, subtracted=bigram)
    parts = unpacked.parts(model, method)
    return parts if method == "BS" else replace(parts, lm=lm)


class OneSystem:
    """One network with one method and one LM, in a folder of its own."""

    def __init__(self, folder: Path, model: str, method: Method, parts: Parts, plan: DecodingPlan) -> None:
        self.folder, self.model, self.method, self.parts, self.plan = folder, model, method, parts, plan
        self.recogniser = load_recogniser(parts, search_options(plan, model))

    def decoder(self, utterances: Sequence[Utterance], name: str) -> SearchDecoder:
        about = describe(self.parts)
        return SearchDecoder(self.recogniser, utterances, folder=self.folder / name, about=about, options=DECODING)

    def tuned(self, dev: Sequence[Utterance]) -> TuningResult:
        """Weights that dev chose; those of an earlier run if there are some."""
        file, plan = self.folder / "tuning.json", self.plan
        if not file.is_file():
            options = TuningOptions(
                method=self.method,
                space=WeightSpace(WIDE, WIDE, plan.rnnt_length if self.model == "rnnt" else plan.aed_length),
                beam=plan.tuning_beam,
                max_decodes=plan.decodes,
                replicates=0,
                seed=1,
            )
            tune_decoder(self.decoder(dev, "tuning"), self.recogniser, dev, options, say).save(file)
        return TuningResult.load(file)

    def tested(self, dev: Sequence[Utterance], test: Sequence[Utterance]) -> System:
        """Both sets at the tables' beam, with the weights that dev chose."""
        tuning = self.tuned(dev)
        lists = self.decoder(dev, "dev").decode(tuning.weights, self.plan.beam)
        texts = {i: nbest[0].text for i, nbest in lists.items()}
        dev_wer = round(measure({u.id: u.text for u in dev}, texts).total.rate, 4)
        task = Plan(self.model, self.method, tuning.weights, self.plan.beam, "none", tuning, dev_wer, details=0)
        return evaluate_decoder(task, self.recogniser, self.decoder(test, "test"), test)


def say(step: TuningStep) -> None:
    w = step.weights
    print(f"  λ {w.lm:.3f}, μ {w.subtracted:.3f}, β {w.length:.2f}: dev WER {step.counts.rate:.2f}", flush=True)


def run(args: argparse.Namespace) -> None:
    plan = read_config(PLAN).decoding
    unpacked = read_bundle().unpack(args.folder / f"bundle-{args.model}")
    dev, test = (read_utterances(args.sets / f"target-{part}") for part in ("dev", "test"))
    name, lm = args.lm.split("=", 1)
    for method in args.methods:
        folder = args.folder / name / f"{args.model}-{method}"
        parts = parts_of(unpacked, args.model, method, lm, args.source_bigram)
        one = OneSystem(folder, args.model, method, parts, plan)
        system = one.tested(dev, test)
        Results(name, "none", references_of(test), (system,)).save(folder / "results.json")
        about = {"lm": Path(lm).name, "text": args.text, "words": args.words, "commit": commit(), **versions("cpu")}
        if lm:
            found = perplexity(
                load_lm(lm, one.recogniser.model.tokens), (u.text for u in dev), one.recogniser.tokenizer
            )
            if is_mixture(lm):
                about["shares"] = [round(weight, 3) for weight in read_mixture(Path(lm)).weights]
            about |= {"dev perplexity": round(found.per_token, 2), "dev perplexity per word": round(found.per_word, 1)}
        (folder.parent / "about.json").write_text(json.dumps(about, ensure_ascii=False), encoding="utf-8")
        print(f"{name} {args.model} {method}: dev {system.dev_wer:.2f}", flush=True)


def gather(args: argparse.Namespace) -> None:
    out: dict[str, Any] = {"what": args.what, "command": COMMAND, "lms": {}}
    without = list((args.folder / "none").glob("*/results.json"))
    for folder in sorted(p.parent for p in args.folder.glob("*/about.json")):
        if folder.name == "none":
            continue
        tested = [Results.load(f) for f in (*without, *folder.glob("*/results.json"))]
        tested.sort(key=lambda found: ORDER.index(found.systems[0].method))
        results = merge_results(tested, folder.name)
        models = sorted({system.model for system in results.systems})
        out["lms"][folder.name] = {
            **json.loads((folder / "about.json").read_text(encoding="utf-8")),
            "rows": rows(results),
            "pairs": pairs(results, models),
            "dev WER while tuning": {
                f.parent.name: [round(step.counts.rate, 2) for step in TuningResult.load(f).steps]
                for f in sorted(folder.glob("*/tuning.json"))
            },
        }
    args.out.write_text(json.dumps(out, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def draw(args: argparse.Namespace) -> None:
    """Test WER against the words that the target LM has read; the study's own LM lies between the others."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    plt.rcParams.update({"svg.hashsalt": "ilme", "svg.fonttype": "none"})
    found = json.loads(args.results.read_text(encoding="utf-8"))
    study = json.loads(STUDY.read_text(encoding="utf-8"))
    points = {lm["words"]: lm["rows"] for lm in found["lms"].values()}
    points[study["lm"]["target"]["words"]] = study["cross"]
    figure, axes = plt.subplots(figsize=(6.4, 3.8))
    baseline = next(row["test WER"] for row in study["cross"] if row["system"] == "rnnt BS")
    axes.axhline(baseline, color="#999999", linestyle=":", linewidth=1)
    axes.text(min(points), baseline + 0.12, "no LM", color="#777777", fontsize=9)
    for method, (colour, name) in LINES.items():
        rates = {w: r["test WER"] for w, rs in sorted(points.items()) for r in rs if r["system"] == f"rnnt {method}"}
        axes.plot(rates.keys(), rates.values(), "o-", color=colour, label=name)
    axes.set(xscale="log", xlabel="words that the target LM has read", ylabel="test WER, %")
    axes.set_xticks(sorted(points), [f"{w:,}" for w in sorted(points)])
    axes.minorticks_off()
    axes.grid(alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, loc="lower left")
    figure.tight_layout()
    figure.savefig(args.picture, metadata={"Date": None} if args.picture.suffix == ".svg" else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("run")
    one.add_argument("folder", type=Path)
    one.add_argument("methods", nargs="+")
    one.add_argument("--model", default="rnnt", choices=["rnnt", "aed"])
    one.add_argument("--lm", default="none=", help="NAME=FILE; none= with the method BS")
    one.add_argument("--text", default="", help="what the LM has read, for the results file")
    one.add_argument("--words", type=int, default=0, help="how much of it")
    one.add_argument("--source-bigram", default="", help="for LODR")
    one.add_argument("--sets", type=Path, default=Path("out/study/small/sets"))
    one.set_defaults(run=run)
    all_of_it = commands.add_parser("gather")
    all_of_it.add_argument("folder", type=Path)
    all_of_it.add_argument("out", type=Path)
    all_of_it.add_argument("--what", default="")
    all_of_it.set_defaults(run=gather)
    picture = commands.add_parser("draw")
    picture.add_argument("results", type=Path)
    picture.add_argument("picture", type=Path)
    picture.set_defaults(run=draw)
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()
