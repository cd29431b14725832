"""From a study's outputs to the bundle that ships: networks in 8 bits, a part of the target dev and test sets, weights.

The weights are those that the study's dev set chose. What the bundle says of itself is measured with the bundled files,
on a processor, by the code that the demonstration runs.
"""

from __future__ import annotations

import json
import shutil
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, cast

from ilme.data.audio import load_audio
from ilme.data.utterances import Utterance, in_memory
from ilme.errors import BadInputError
from ilme.evaluation.metrics import measure
from ilme.evaluation.results import System
from ilme.evaluation.tuning_result import TuningResult
from ilme.models.int8 import to_int8
from ilme.recogniser.decoder import SearchDecoder
from ilme.recogniser.options import options_to_json
from ilme.runtime.files import atomic_path, file_hash, replace_folder, write_json
from ilme.search.attention import AttentionOptions
from ilme.search.transducer import TransducerOptions
from ilme.study.archive import add_file
from ilme.study.card import write_card
from ilme.study.config import DecodingPlan
from ilme.study.decoding import search_options
from ilme.study.synthesis import RATE, write_opus
from ilme.workflows.bundle import FILES, FORMAT, LEARNED, SETS, VERSION, Bundle, BundledSystem, read_bundle
from ilme.workflows.demo import FURTHER, METHODS, MODELS, DemoOptions, SystemRun

__all__ = ["BundleOptions", "build_bundle"]

_NETWORKS = {"rnnt": "rnnt", "aed": "aed", "lm": "lm-target", "source_lm": "lm-source"}
_CHECKED = 20  # utterances of the quick check


@dataclass(frozen=True)
class BundleOptions:
    """What goes into the bundle.

    Attributes:
        dev: Utterances of the target dev set.
        test: Utterances of the target test set.
        longest: Longer utterances, in seconds, are passed over.
        opus: libsndfile's compression level of the recordings, from 0 to 1; 0.94 is 21 kbit/s.
        beam: Beam of the demonstration's search.
        limit: Most bytes of it all.
    """

    dev: int = 200
    test: int = 300
    longest: float = 4.8
    opus: float = 0.94
    beam: int = 8
    limit: int = 25_000_000


def build_bundle(study: Path, folder: Path, options: BundleOptions | None = None) -> Bundle:
    """Writes the bundle of a study (its folder, or its unpacked parcels) as `folder`; returns it, measured.

    A bundle that is there is replaced, whole or not at all.
    """
    if folder.is_dir() and (foreign := sorted(p.name for p in folder.iterdir() if p.name not in FILES)):
        raise BadInputError(f"{folder} holds {foreign[0]}, which no bundle has: choose another folder")
    with replace_folder(folder) as fresh:
        _build(study, fresh, options or BundleOptions())
    return read_bundle(folder)


def _build(study: Path, folder: Path, options: BundleOptions) -> None:
    for name, stage in _NETWORKS.items():
        to_int8(study / stage / "model.safetensors", folder / f"{name}.safetensors")
    for model, name in LEARNED.items():
        learned = study / f"ilm-{model}" / "stand-in.safetensors"
        if learned.is_file():
            shutil.copyfile(learned, folder / name)
    for part in SETS:
        _write_set(study / "sets" / f"target-{part}", folder / f"{part}.tar.xz", getattr(options, part), options)
    about = _about(study)
    plan = DecodingPlan(**_fields(about["config"]["decoding"]))
    plan = replace(plan, beam=options.beam)
    bundle = Bundle(
        folder=folder,
        beam=options.beam,
        transducer=cast(TransducerOptions, search_options(plan, "rnnt")),
        attention=cast(AttentionOptions, search_options(plan, "aed")),
        systems=tuple(_systems(study)),
        files={p.name: file_hash(p) for p in sorted(folder.iterdir()) if p.suffix in (".safetensors", ".xz")},
        study={key: about[key] for key in ("name", "commit", "versions")} | {"seed": about["config"]["seed"]},
    )
    measured, check, rows = _measured(bundle)
    bundle = replace(bundle, systems=tuple(measured), check=check)
    _write(bundle)
    write_card(folder / "card.md", about, rows, options)
    size = sum(p.stat().st_size for p in folder.iterdir())
    if size > options.limit:
        raise BadInputError(
            f"the bundle of {study} has {size:,} bytes, more than {options.limit:,}; take fewer utterances"
        )


def _fields(values: Mapping[str, Any]) -> dict[str, Any]:
    return {k: tuple(v) if isinstance(v, list) else v for k, v in values.items()}


def _about(study: Path) -> dict[str, Any]:
    file = study / "tables" / "study.json"
    if not file.is_file():
        raise BadInputError(f"{study} has no tables/study.json: run the study to its end, or unpack its results")
    about: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
    return about


def _systems(study: Path) -> list[BundledSystem]:
    """The paper's methods, and those beyond them that the study has."""
    found = []
    for model in MODELS:
        tuned = study / f"tune-{model}-cross"
        for method in (*METHODS, *(m for m in FURTHER if (tuned / f"{m}.json").is_file())):
            tuning = TuningResult.load(tuned / f"{method}.json")
            found.append(BundledSystem(model, method, tuning.weights, 0.0, 0.0))
    return found


def _write_set(source: Path, archive: Path, count: int, options: BundleOptions) -> None:
    """The first utterances that are not too long, with their manifest; encoded anew, to be small."""
    if not (source / "manifest.jsonl").is_file():
        raise BadInputError(f"there is no {source}: run the study's stage sets first (ilme study PLAN --only sets)")
    lines = (source / "manifest.jsonl").read_text(encoding="utf-8").splitlines()
    rows = [row for row in map(json.loads, lines) if row["duration"] <= options.longest][:count]
    if len(rows) < count:
        raise BadInputError(f"{source} has {len(rows)} utterances of at most {options.longest:g} s; {count} are wanted")
    named = [row | {"audio_filepath": f"{Path(row['audio_filepath']).stem}.opus"} for row in rows]
    with (
        tempfile.TemporaryDirectory() as place,
        atomic_path(archive) as partial,
        tarfile.open(partial, "w:xz") as tar,
    ):
        manifest = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in named)
        add_file(tar, "manifest.jsonl", manifest.encode())
        for row, new in zip(rows, named, strict=True):
            smaller = Path(place) / new["audio_filepath"]
            write_opus(smaller, load_audio(source / row["audio_filepath"], RATE), options.opus)
            add_file(tar, smaller.name, smaller.read_bytes())


def _measured(bundle: Bundle) -> tuple[list[BundledSystem], dict[str, Any], list[dict[str, Any]]]:
    """Every system on dev and test; the errors of the first test utterances; rows for the card."""
    with tempfile.TemporaryDirectory() as place:
        unpacked = bundle.unpack(Path(place))
        sets = {part: in_memory(unpacked.utterances(part), RATE) for part in SETS}
        decoders: dict[str, dict[str, SearchDecoder]] = {part: {} for part in SETS}
        systems, errors, rows = [], {}, []
        first = sets["test"][:_CHECKED]
        for entry in bundle.systems:
            run = SystemRun(unpacked, entry, DemoOptions(details=0))
            decoded = {part: run.run(sets[part], decoders[part]) for part in SETS}
            rates = {part: _errors(decoded[part], sets[part]) for part in SETS}
            systems.append(replace(entry, dev_wer=round(rates["dev"].rate, 4), test_wer=round(rates["test"].rate, 4)))
            errors[f"{entry.model} {entry.method}"] = _errors(decoded["test"], first).errors
            rows.append(asdict(systems[-1]) | {"parameters": decoded["test"].parameters})
            print(
                f"{entry.model} {entry.method}: dev {rates['dev'].rate:.2f}, test {rates['test'].rate:.2f}", flush=True
            )
        words = sum(len(u.text.split()) for u in first)
        return systems, {"ids": [u.id for u in first], "errors": errors, "words": words}, rows


def _errors(system: System, utterances: Sequence[Utterance]) -> Any:
    references = {u.id: u.text for u in utterances}
    return measure(references, {i: system.hypotheses[i] for i in references}).total


def _write(bundle: Bundle) -> None:
    systems = [
        {
            "model": s.model,
            "method": s.method,
            "lambda_t": s.weights.lm,
            "mu": s.weights.subtracted,
            "length_reward": s.weights.length,
            "background": s.weights.background,
            "dev_wer": s.dev_wer,
            "test_wer": s.test_wer,
        }
        for s in bundle.systems
    ]
    data = {
        "format": FORMAT,
        "version": VERSION,
        "beam": bundle.beam,
        "transducer": options_to_json(bundle.transducer),
        "attention": options_to_json(bundle.attention),
        "systems": systems,
        "check": bundle.check,
        "files": bundle.files,
        "study": bundle.study,
    }
    write_json(bundle.folder / "bundle.json", data)
