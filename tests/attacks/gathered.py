"""What the commands of studies and text domains read, at the smallest size: a finished study, corpora, a package."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

from ilme.data.registries import Package
from ilme.evaluation.metrics import ErrorCounts
from ilme.evaluation.tuning_result import Balance, HeatMap, TuningResult
from ilme.fusion import FusionWeights
from ilme.models.checkpoint import save_model
from ilme.runtime.files import file_hash, write_json, write_text
from ilme.study.bundling import METHODS, MODELS
from ilme.study.config import read_config
from ilme.study.stages import build_study
from tests.checkpoints import TEXTS, write_checkpoints, write_set
from tests.models.test_fused_lm import language_model, network
from tests.study.test_recordings import corpus

PLANS = Path(__file__).parents[2] / "configs" / "study"
STAGES = {"rnnt": "rnnt", "aed": "aed", "lm-target": "lm", "lm-source": "lm"}  # of a study, and the kind of each


def write_decoders(folder: Path) -> None:
    """`component`, a decoder that was trained around an LM, and `inner`, another LM for it."""
    save_model(folder / "component", network("component").float())
    save_model(folder / "inner", language_model(8).float())


def write_corpora(root: Path) -> None:
    """What configs/study/real-tiny.yaml reads."""
    corpus(root, "common-voice-en", {"train": 6, "dev": 3}, 16000, 1)
    corpus(root, "librispeech-dev-clean", {"tune": 2, "test": 2}, 16000, 2)
    corpus(root, "harper-valley-bank", {"train": 4, "dev": 2, "test": 2}, 8000, 3)
    write_text(root / "text" / "novels" / "train.txt", "the old ship came home from sea with gold\n" * 400)


def write_package(cache: Path, folder: Path) -> None:
    """A fetched package of the domain `dictionary`, in a cache; nothing where no tool makes one."""
    if shutil.which("dpkg-deb") is None:
        return
    package = Package("debian", "wordnet-base")
    control = f"Package: {package.name}\nVersion: 1\nArchitecture: all\nMaintainer: none\nDescription: words\n"
    write_text(folder / "DEBIAN" / "control", control)
    words = {5: ("dwarf", "a plant or animal that is small"), 13: ("bread", "food made from dough of flour"),
             38: ("run", "move fast by using one's feet")}  # fmt: skip
    lines = (f"0000{k}000 {k:02} n 01 {w} 0 001 @ 00004475 n 0000 | {meaning}\n" for k, (w, meaning) in words.items())
    write_text(folder / "usr" / "share" / "wordnet" / "data.noun", "".join(lines))
    kept = cache / "packages" / package.slug / "file"
    kept.parent.mkdir(parents=True)
    subprocess.run(["dpkg-deb", "--build", str(folder), str(kept)], capture_output=True, check=True)
    write_text(kept.with_name("sha256"), file_hash(kept))


def write_finished_study(study: Path) -> None:
    """All that a bundle is made of, by networks that were not trained."""
    made = write_checkpoints(study / "made")
    for stage, kind in STAGES.items():
        shutil.copytree(made / kind, study / stage)
    for part in ("dev", "test"):
        folder = study / "sets" / f"target-{part}"
        folder.mkdir(parents=True)
        write_set(folder, "u", TEXTS[:2]).rename(folder / "manifest.jsonl")
    nothing = ErrorCounts(hits=1)
    told = (FusionWeights(), nothing, None, 2, "none", 1.0, 2, (), HeatMap((0.0,), (0.0,), ((0.0,),), 0.0))
    for model in MODELS:
        for method in METHODS:
            result = TuningResult(method, *told, Balance((), (), (), (), ()), None, 0.0)
            result.save(study / f"tune-{model}-cross" / f"{method}.json")
    plan = read_config(PLANS / "tiny.yaml", {"decoding.max_length": 4})
    facts = {"parameters": 1, "steps": 0, "training_seconds": 0.0, "hours_heard": 0.0, "hours": 0.0,
             "made_with": {"device": "cpu", "torch": "0", "commit": ""}}  # fmt: skip
    about = {"name": plan.name, "config": plan.to_json(), "commit": "", "versions": {},
             "stages": dict.fromkeys((*STAGES, "speech"), facts)}  # fmt: skip
    write_json(study / "tables" / "study.json", json.loads(json.dumps(about)))


def write_begun_study(folder: Path) -> None:
    """`begun`, a study with a stage that can be packed, and `packed`, its parcel."""
    from ilme.study.archive import pack

    study = build_study(read_config(PLANS / "tiny.yaml"), folder / "begun", "cpu")
    study.run(["text", "tokenizer"])
    pack(study, folder / "packed")
