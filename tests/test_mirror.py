"""A module's tests are found by its name: tests/<package>/test_X.py is about src/ilme/<package>/X.py."""

from __future__ import annotations

from pathlib import Path

TESTS = Path(__file__).parent
ROOT = TESTS.parent
SOURCE = ROOT / "src" / "ilme"
SPANNING = {  # tests of more than one module, or of none
    "adapters/test_model_table.py": "every kind of model against the table of docs/reference/models.md",
    "adapters/test_patterns.py": "models of other toolkits, wrapped as docs/reference/toolkits.md shows",
    "commands/test_cli.py": "ilme.cli, with the commands that it names",
    "ilm/test_internal_lm.py": "the function of the package, over every family",
    "losses/test_kernels.py": "every Triton kernel, in losses and models",
    "models/test_networks.py": "what the RNN-T, the AED and the LM have in common",
    "recogniser/test_own_model.py": "a model of the user's own, from internal LM to tuner",
    "search/test_attention_stop.py": "when ilme.search.attention may stop, against searches that go on",
    "search/test_beam_oracle.py": "both searches with narrow beams, against a plain one",
    "search/test_options.py": "the options of both searches",
    "search/test_savings.py": "what ilme.search.transducer leaves out, against a search that leaves out nothing",
    "study/test_smoke.py": "every stage of a study, one after the other",
    "test_cuda.py": "both searches on a GPU",
    "test_docstrings.py": "docstrings of every module",
    "test_layers.py": "imports of every module",
    "test_mirror.py": "this rule",
    "test_names.py": "the names of the package itself",
    "train/test_learning.py": "whole trainings, from batches to a model that recognises",
    "train/test_resuming.py": "whole trainings, killed and continued",
    "tuning/test_tuner_steps.py": "single steps of ilme.tuning.tuner, apart from whole tunings",
    "workflows/test_adapt_families.py": "ilme.workflows.adapt and transcribe, for each family that others made",
    "workflows/test_adapt_choices.py": "what ilme.workflows.adapt chooses, apart from what it writes",
}
APART = ("attacks", "cuda", "docs", "mutation", "wheel")  # about inputs, pages, tests and the wheel, not modules


def mirrored(test: Path) -> list[Path]:
    """Where the module of a test may be; benchmarks are beside the package."""
    folder, name = test.parent, test.name.removeprefix("test_")
    return [ROOT / folder / name] if folder.name == "benchmarks" else [SOURCE / folder / name]


def files_of_tests() -> list[Path]:
    found = [p.relative_to(TESTS) for p in sorted(TESTS.rglob("test_*.py"))]
    return [p for p in found if p.parts[0] not in APART]


def test_every_test_has_its_module_or_a_reason():
    lost = [str(t) for t in files_of_tests() if not any(p.is_file() for p in mirrored(t)) and str(t) not in SPANNING]
    assert not lost, f"name them after a module, or give the reason in {Path(__file__).name}: {', '.join(lost)}"


def test_every_reason_is_needed():
    known = {str(t) for t in files_of_tests()}
    gone = [t for t in SPANNING if t not in known]
    needless = [t for t in SPANNING if t in known and any(p.is_file() for p in mirrored(Path(t)))]
    assert not gone and not needless and all(SPANNING.values())


def test_every_package_of_tests_is_a_package_of_ours():
    folders = {t.parts[0] for t in files_of_tests() if len(t.parts) > 1}
    assert folders - {"benchmarks"} <= {p.name for p in SOURCE.iterdir() if p.is_dir()}
