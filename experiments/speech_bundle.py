"""What `ilme demo` shows of real speech: recordings, LMs and weights of two domains, from the corpora to the package.

python -m experiments.speech_bundle sets --judge openai/whisper-base.en --corpora CORPORA --work out/speech
python -m experiments.speech_bundle text --model openai/whisper-tiny.en --corpora CORPORA --work out/speech
python -m experiments.speech_bundle weights --model openai/whisper-tiny.en --work out/speech
python -m experiments.speech_bundle pack --work out/speech
python -m experiments.speech_bundle publish --demo out/demo --json docs/results/data/demo-speech.json

CORPORA holds `harper-valley-bank` and `librispeech-dev-clean`, each with its manifest.jsonl, and text/novels.tar.xz.
`make bundle-speech` runs the first four; `publish` gathers what a run of `ilme demo` measured.

`sets` draws what is shown from the test speakers and calls, and what tunes from others, with a fixed seed. Shown is
only what is cut right: see `RULE`. The judge of that is a larger model without any LM, none of the systems that are
shown. `text` makes an LM of each domain, without sentences that share eight words in a row with the audiobooks.
`weights` runs `ilme adapt` on dev for ILME, with phrases and without, and the tuner for Shallow Fusion with one decode
more. Nothing that is shown is decoded by any of these.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import tarfile
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from benchmarks.phrases import CASTS
from benchmarks.timing import publish

from experiments.whisper_bank import well_timed
from ilme.data.audio import load_audio
from ilme.data.utterances import Utterance, read_utterances
from ilme.evaluation.metrics import align, normaliser
from ilme.evaluation.results import Results
from ilme.evaluation.tuning_result import TuningResult
from ilme.lm.case_folding import FoldedScorer, Folds
from ilme.lm.ngram import load_ngram
from ilme.lm.phrase_list import as_phrases, read_phrases, write_phrases
from ilme.recogniser.cached_decoder import CachedDecoder
from ilme.recogniser.decoder import DecodingOptions, SearchDecoder
from ilme.recogniser.domain import Domain
from ilme.recogniser.loading import load_model
from ilme.recogniser.options import default_options
from ilme.recogniser.packing import pack_networks
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.files import atomic_path, file_hash, write_json, write_text
from ilme.study.archive import add_file
from ilme.study.synthesis import write_opus
from ilme.tuning.tuner import TuningOptions
from ilme.workflows.adapt import adapt
from ilme.workflows.domain_lm import LMOptions, train_domain_lm
from ilme.workflows.options import AdaptOptions
from ilme.workflows.speech_bundle import FORMAT, SPEECH, VERSION
from ilme.workflows.tune import tune_decoder

SEED, BEAM, RATE = 0, 5, 16_000
SHOWN, LONGEST, SHORTEST = 30, 12.0, 1.0  # utterances of a domain, and their seconds
OPUS = 0.9  # libsndfile's level
ENDS, SLIPS = 3, 2  # words at an end of which the judge hears one as written; words it may add or miss before that
OFTEN = 3
STEPS = 64  # parts of a nat to which an n-gram's scores are rounded
NORMALISER = "whisper"
RULE = (
    "From the test speakers and calls, with a fixed seed: at most one utterance of a call and two of a reader, 1 to 12 "
    "seconds and at least four words long. Shown if it is cut right: no 0.8 s without sound (calls), and a larger "
    "model without any LM (Whisper base.en), which is none of the systems compared, hears one of the first three and "
    "one of the last three words as they are written, and beyond these at most two words too many or too few. Errors "
    "between the ends do not matter. No system that is compared had decoded an utterance before it was chosen."
)
CREDITS = """\
# Credits of the recordings

`ilme demo` plays and recognises short recordings of two corpora. Both are licensed under the Creative Commons
Attribution 4.0 International licence (CC BY 4.0, https://creativecommons.org/licenses/by/4.0/), which allows them to be
shared and changed with credit. What was changed here: a few utterances were chosen, stored as mono Opus at 16 kHz, and
their transcripts kept as they were.

| archive | corpus | by | licence |
| --- | --- | --- | --- |
| books.tar.xz | LibriSpeech, dev-clean (https://www.openslr.org/12) | Vassil Panayotov, Guoguo Chen, Daniel Povey, \
Sanjeev Khudanpur (2015); read by volunteers of LibriVox | CC BY 4.0 |
| calls.tar.xz | HarperValleyBank (https://github.com/cricketclub/gridspace-stanford-harper-valley) | Mike Wu, \
Jonathan Nafziger, Anthony Scodary, Andrew Maas (2020), Gridspace and Stanford University | CC BY 4.0 |

The LM of the calls is a 4-gram made from the transcripts of other HarperValleyBank calls (CC BY 4.0); the LM of the
books is a pruned 4-gram made from novels that are in the public domain in the United States. The list of names of the
books was written for this project; that of the calls was made from those other transcripts.

How the recordings were chosen: {rule}
"""


@dataclass(frozen=True)
class Corpus:
    """A domain of the demonstration.

    Attributes:
        name: Of its files.
        title: As people call it.
        credit: Whose recordings they are, and under which licence.
        folder: The corpus.
        tuned, shown: Its splits.
        group: The manifest's field of which at most `each` utterances are shown.
        each: How many of them.
        dev: Utterances that tune.
        prune: Counts up to which n-grams are left out.
        options: How it is adapted.
    """

    name: str
    title: str
    credit: str
    folder: str
    tuned: str
    shown: str
    group: str
    each: int
    dev: int
    prune: tuple[int, ...]
    options: AdaptOptions


CORPORA = (
    Corpus(
        *("calls", "bank calls"),
        "HarperValleyBank (Wu, Nafziger, Scodary, Maas 2020), CC BY 4.0, stored anew as Opus",
        *("harper-valley-bank", "dev", "test", "call", 1, 100, (0, 0, 1)),
        AdaptOptions(style="fold", overlap=0, beam=BEAM, normaliser=NORMALISER, decoding="best"),
    ),
    Corpus(
        *("books", "audiobooks"),
        "LibriSpeech (Panayotov, Chen, Povey, Khudanpur 2015), read for LibriVox, CC BY 4.0, stored anew as Opus",
        *("librispeech-dev-clean", "tune", "test", "speaker", 2, 60, (0, 1, 4, 8)),
        AdaptOptions(style="restore", beam=BEAM, normaliser=NORMALISER, decoding="best"),
    ),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stage", choices=("sets", "text", "weights", "pack", "publish"))
    parser.add_argument("--model", default="openai/whisper-tiny.en")
    parser.add_argument("--judge", default="openai/whisper-base.en")
    parser.add_argument("--corpora", type=Path, help="the folder with both corpora and text/novels.tar.xz")
    parser.add_argument("--work", type=Path, default=Path("out/speech-bundle"))
    parser.add_argument("--demo", type=Path, default=Path("out/demo"), help="what `ilme demo` wrote")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--domain", choices=[c.name for c in CORPORA], help="this one alone")
    args = parser.parse_args()
    torch.set_num_threads(1)
    stages = {"sets": write_sets, "text": write_text_lm, "weights": find_weights}
    for corpus in CORPORA:
        if args.domain in (None, corpus.name) and args.stage in stages:
            (args.work / corpus.name).mkdir(parents=True, exist_ok=True)
            stages[args.stage](corpus, args)
    if args.stage == "pack":
        pack(args.work, SPEECH)
    elif args.stage == "publish":
        publish(gathered(args.demo), args.json, seed=SEED)


# --- which recordings -------------------------------------------------------------------------------------------------


def write_sets(corpus: Corpus, args: argparse.Namespace) -> None:
    """test.jsonl and dev.jsonl of a domain."""
    folder = args.corpora.resolve() / corpus.folder
    rows = [json.loads(line) for line in (folder / "manifest.jsonl").read_text(encoding="utf-8").splitlines()]
    rows = [{**row, "audio_filepath": str(folder / row["audio_filepath"])} for row in rows if fits(row)]
    random.Random(SEED).shuffle(rows)
    judge = Recogniser(load_model(args.judge, silence=8)).pack()
    shown: list[dict[str, Any]] = []
    seen: dict[str, int] = {}
    heard = 0
    for row in (r for r in rows if r["split"] == corpus.shown):
        if len(shown) == SHOWN:
            break
        if seen.get(row[corpus.group], 0) < corpus.each:
            heard += 1
            if is_cut_right(row, judge, corpus.name == "calls"):
                shown.append(row)
                seen[row[corpus.group]] = seen.get(row[corpus.group], 0) + 1
    dev = [r for r in rows if r["split"] == corpus.tuned]
    if corpus.name == "calls":
        dev = [r for r in dev[: 2 * corpus.dev] if well_timed(utterance(r))]
    for name, chosen in (("test", shown), ("dev", dev[: corpus.dev])):
        write_text(args.work / corpus.name / f"{name}.jsonl", "".join(json.dumps(r) + "\n" for r in chosen))
    write_json(args.work / corpus.name / "sets.json", {"judged": heard, "shown": len(shown)})
    print(f"{corpus.name}: {len(shown)} shown of {heard} that were judged, {len(dev[: corpus.dev])} tune")


def fits(row: dict[str, Any]) -> bool:
    return SHORTEST <= row["duration"] <= LONGEST and len(row["text"].split()) >= 4


def utterance(row: dict[str, Any]) -> Utterance:
    return Utterance(Path(row["audio_filepath"]).stem, row["text"], row["audio_filepath"], row["speaker"])


def is_cut_right(row: dict[str, Any], judge: Recogniser, telephone: bool) -> bool:
    """Whether both ends of the transcript are in the audio, as `RULE` says."""
    if telephone and not well_timed(utterance(row)):
        return False
    lists = judge.nbest([utterance(row).samples(RATE)])
    normalise = normaliser(NORMALISER)
    edits = align(normalise(row["text"]), normalise(lists[0][0].text if lists[0] else ""))
    return all(end_is_there(side) for side in (edits, edits[::-1]))


def end_is_there(edits: Sequence[Any]) -> bool:
    words = slips = 0
    for edit in edits:
        if edit.kind == "equal":
            return True
        words += edit.kind != "insert"
        slips += edit.kind != "substitute"
        if words >= ENDS or slips > SLIPS:
            return False
    return False


# --- text, and what it gives ------------------------------------------------------------------------------------------


def write_text_lm(corpus: Corpus, args: argparse.Namespace) -> None:
    """lm.safetensors and phrases.txt of a domain."""
    place, model = args.work / corpus.name, load_model(args.model)
    if corpus.name == "calls":
        manifest = args.corpora / corpus.folder / "manifest.jsonl"
        rows = [json.loads(line) for line in manifest.read_text(encoding="utf-8").splitlines()]
        said = [row["text"] for row in rows if row["split"] == "train"]
        write_text(place / "train.txt", "".join(f"{line}\n" for line in said))
        text, never = [str(place / "train.txt")], []
        write_phrases(place / "phrases.txt", as_phrases(["Harper Valley National Bank", *callers(said)]))
    else:
        text = [str(args.corpora / "text" / "novels.tar.xz")]
        manifest = args.corpora / corpus.folder / "manifest.jsonl"
        never = [json.loads(line)["text"] for line in manifest.read_text(encoding="utf-8").splitlines()]
        write_phrases(place / "phrases.txt", read_phrases(CASTS))
    options = LMOptions(corpus.options.style, 4, corpus.prune, corpus.options.overlap)
    lm, about = train_domain_lm(model, text, never, place / "whole.safetensors", options, print)
    a = lm.automaton
    lm.automaton = replace(a, log_prob=rounded(a.log_prob), backoff=rounded(a.backoff))
    lm.save(place / "lm.safetensors")
    write_json(place / "text.json", about)
    print(corpus.name, about)


def callers(said: Sequence[str]) -> list[str]:
    """Names that people give for themselves in the text, three times or more."""
    begins = Counter(line.split()[0] for line in said)
    names = Counter(m.groups() for line in said for m in re.finditer(r"\bmy name is ([a-z]+) ([a-z]+)", line))
    return sorted(f"{a} {b}".title() for (a, b), n in names.items() if n >= OFTEN and begins[b] < OFTEN)


def rounded(scores: Any) -> Any:
    """To parts of a nat: nothing to a search, and half the bytes in an archive."""
    return (scores * STEPS).round() / STEPS


# --- weights ----------------------------------------------------------------------------------------------------------


def find_weights(corpus: Corpus, args: argparse.Namespace) -> None:
    """The domain folder of ILME, as `ilme adapt` makes it, and the tuning of Shallow Fusion."""
    place, model = args.work / corpus.name, load_model(args.model)
    if not (place / "domain").exists():  # else it is the tuning that is left to do
        adapt(
            args.model,
            [],
            place / "domain",
            dev=place / "dev.jsonl",
            limit=0,
            lm=str(place / "lm.safetensors"),
            phrases=place / "phrases.txt",
            options=corpus.options,
            host=model,
            say=print,
        )
    aside = Domain.read(place / "domain").report.get("set aside", {})
    lm: Any = load_ngram(place / "lm.safetensors")
    pack_networks(model, (lm,), "float32")
    dev = [u for u in read_utterances(place / "dev.jsonl") if u.id not in aside]
    lm = FoldedScorer(lm, Folds(model.tokens, model.device)) if corpus.options.style == "fold" else lm
    recogniser = Recogniser(model, lm=lm, options=default_options(model, BEAM))
    kept = place / "sf-decodes"  # a run that was stopped goes on where it was
    decoder = CachedDecoder(SearchDecoder(recogniser, dev, folder=kept, options=DecodingOptions(cache="cpu")))
    decodes = corpus.options.max_decodes + 1
    options = TuningOptions("SF", beam=BEAM, max_decodes=decodes, normaliser=NORMALISER, replicates=0)
    tuning = tune_decoder(decoder, recogniser, dev, options, lambda step: print(step.weights.lm, step.counts.rate))
    tuning.save(place / "sf.json")


# --- the package ------------------------------------------------------------------------------------------------------


def pack(work: Path, folder: Path) -> None:
    """An archive of each domain, the description and the credits."""
    folder.mkdir(parents=True, exist_ok=True)
    domains = []
    for corpus in CORPORA:
        place = work / corpus.name
        write_archive(place, folder / f"{corpus.name}.tar.xz")
        report = Domain.read(place / "domain").report
        tuned = {
            "BS": report["before"]["WER"],
            "SF": round(TuningResult.load(place / "sf.json").dev.rate, 4),
            "ILME": round(TuningResult.load(place / "domain" / "tuning.json").dev.rate, 4),
            "ILME + phrases": report["after"]["WER"],
        }
        fused = asdict(TuningResult.load(place / "sf.json").weights)
        text = json.loads((place / "text.json").read_text(encoding="utf-8"))
        facts = {
            "dev utterances": report["dev utterances"],
            "set aside": len(report.get("set aside", {})),
            "words of text": text["words"],
            "n-grams": text["n-grams"],
            "phrases": report["phrases"]["listed"],
            **json.loads((place / "sets.json").read_text(encoding="utf-8")),
        }
        named = {"name": corpus.name, "title": corpus.title, "credit": corpus.credit}
        domains.append({**named, "sf": fused, "dev_wer": tuned, "about": facts})
    files = {p.name: file_hash(p) for p in sorted(folder.glob("*.tar.xz"))}
    data = {
        "format": FORMAT,
        "version": VERSION,
        "model": "openai/whisper-tiny.en",
        "beam": BEAM,
        "seed": SEED,
        "rule": RULE,
        "domains": domains,
        "files": files,
    }
    write_json(folder / "speech.json", data)
    write_text(folder / "CREDITS.md", CREDITS.format(rule=RULE))
    print({p.name: p.stat().st_size for p in sorted(folder.iterdir())})


def write_archive(place: Path, archive: Path) -> None:
    """The domain folder and the recordings that are shown, encoded anew."""
    rows = [json.loads(line) for line in (place / "test.jsonl").read_text(encoding="utf-8").splitlines()]
    kept = ("duration", "text", "speaker")
    named = [
        {"audio_filepath": f"{Path(r['audio_filepath']).stem}.opus", **{k: r[k] for k in kept}}
        for r in sorted(rows, key=lambda r: r["audio_filepath"])
    ]
    sources = {Path(r["audio_filepath"]).stem: r["audio_filepath"] for r in rows}
    with (
        tempfile.TemporaryDirectory() as temporary,
        atomic_path(archive) as partial,
        tarfile.open(partial, "w:xz", preset=9) as tar,
    ):
        for file in sorted((place / "domain").iterdir()):
            if file.name not in ("card.md", "tuning.json"):
                add_file(tar, f"domain/{file.name}", card(file) if file.name == "domain.json" else file.read_bytes())
        add_file(tar, "audio/manifest.jsonl", "".join(json.dumps(row) + "\n" for row in named).encode())
        for row in named:
            small = Path(temporary) / row["audio_filepath"]
            write_opus(small, load_audio(sources[small.stem], RATE), OPUS)
            add_file(tar, f"audio/{small.name}", small.read_bytes())


def gathered(demo: Path) -> dict[str, Any]:
    """Rows and comparisons of both domains, and how they were made."""
    described = json.loads((SPEECH / "speech.json").read_text(encoding="utf-8"))
    domains = {}
    for domain in described["domains"]:
        found = Results.load(demo / f"{domain['name']}.json")
        whole = found.to_json()
        pairs = [{k: p[k] for k in ("a", "b", "relative", "p_bootstrap")} for p in whole["comparisons"]]
        words = next(iter(found.measurements.values())).total.words
        facts = {
            "title": domain["title"],
            "words": words,
            "seconds of audio": whole["audio_seconds"],
            **domain["about"],
        }
        rows = [{k: v for k, v in row.items() if k != "seconds"} for row in whole["results"]]
        domains[domain["name"]] = {**facts, "results": rows, "comparisons": pairs}
    sizes = {p.name: p.stat().st_size for p in sorted(SPEECH.iterdir())}
    return {"rule": described["rule"], "bytes": sizes, "domains": domains}


def card(file: Path) -> bytes:
    """The domain's card, with the model by its name on the hub, and without the names of files."""
    data = json.loads(file.read_text(encoding="utf-8")) | {"model": "openai/whisper-tiny.en"}
    data["report"] = {k: v for k, v in data["report"].items() if k != "set aside"}
    return (json.dumps(data, indent=1, ensure_ascii=False) + "\n").encode()


if __name__ == "__main__":
    main()
