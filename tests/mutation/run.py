"""Puts small faults into the core, one at a time, and says which the nearest tests notice.

    python -m tests.mutation.run --count 400        goes on where it stopped; results in docs/results/data/mutants.json
    python -m tests.mutation.run --again            tries once more what no test noticed
    python -m tests.mutation.run --known            tries those that were once noticed by none (tests/mutation/known.py)
    python -m tests.mutation.run --page             writes docs/results/mutants.md from the results

Faults are drawn by a hash of the seed and of what they are, so that an edit elsewhere does not change the sample. Each
is tried in a copy of the tree, in a fork of one process that has loaded torch already, against the tests of its own
module. Tests that hang or crash have noticed it.
"""

from __future__ import annotations

import argparse
import ast
import compileall
import contextlib
import hashlib
import json
import os
import py_compile
import resource
import shutil
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pytest

from tests.mutation.changes import Change, changes, names_with_defaults
from tests.mutation.known import KNOWN
from tests.mutation.page import page

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "docs" / "results" / "data" / "mutants.json"
PAGE = ROOT / "docs" / "results" / "mutants.md"
SEED = 24
LEFT_OUT = ("lm/kenlm_binary.py",)  # its tests need the package kenlm, which the tests' environment does not have
PACKAGES = ("search", "ilm", "lm", "tuning", "evaluation")
FILES = (
    "fusion.py", "models/checkpoint.py",
    *(f"workflows/{name}.py" for name in ("adapt", "with_dev", "safe_weights", "spoken_dev")),
    *(f"adapters/{name}.py" for name in ("whisper", "decoder", "encoder")),
)  # fmt: skip
CPU_SECONDS = 90  # for the tests of one fault, of which none takes more than 60 without; a busy machine does not count
NO_TESTS = 5  # pytest's exit code where every test is left out, for want of an optional package
LIMIT = 600.0  # seconds that pass, for tests that wait
MEMORY = 6 << 30  # bytes for them: a loop without end must not take the machine's

# The tests that stand nearest to a module, where its own file (tests/<package>/test_<module>.py) is not all.
ADAPT = ["workflows/test_adapt_choices.py", "workflows/test_adapt.py", "workflows/test_phrases.py"]
SEARCHES = ["search/test_beam_oracle.py", "search/test_transducer.py", "search/test_attention.py"]
NEAREST: dict[str, list[str]] = {
    "fusion.py": ["test_fusion.py", "search/test_beam_oracle.py"],
    "workflows/adapt.py": ADAPT,
    "workflows/with_dev.py": ADAPT,
    "workflows/safe_weights.py": ADAPT,
    "workflows/tune.py": ["workflows/test_tune.py", "workflows/test_adapt_choices.py"],
    "adapters/whisper.py": ["adapters/test_whisper.py", "adapters/test_openai_whisper.py"],
    "adapters/decoder.py": [
        "adapters/test_whisper.py",
        "adapters/test_patterns.py",
        "ilm/test_transformer.py",
        "adapters/test_hf.py",
    ],
    "adapters/encoder.py": ["adapters/test_encoder.py", "adapters/test_whisper.py"],
    "lm/ngram_file.py": ["lm/test_ngram.py", "lm/test_ngram_sorted.py"],
    "lm/ngram_sorted.py": ["lm/test_ngram_sorted.py", "commands/test_ngram.py"],
    "models/checkpoint.py": ["models/test_checkpoint.py", "models/test_int8.py"],
    "search/transducer.py": ["search/test_options.py", *SEARCHES[:2], "search/test_savings.py"],
    "search/attention.py": ["search/test_options.py", *SEARCHES[::2], "search/test_attention_stop.py"],
    "search/prefixes.py": ["search/test_prefixes.py", "search/test_beam_oracle.py", "search/test_transducer.py"],
    "search/gate.py": ["search/test_gate.py", "search/test_savings.py", "search/test_transducer.py"],
    "search/history.py": ["search/test_beam_oracle.py", "search/test_transducer.py", "search/test_prefixes.py"],
    "search/repetition.py": ["search/test_repetition.py", *SEARCHES, "recogniser/test_logits_processor.py"],
    "search/length.py": ["search/test_length.py", "recogniser/test_recogniser.py", "search/test_attention_stop.py"],
    "search/hypothesis.py": ["search/test_rescoring.py", "recogniser/test_store.py", "recogniser/test_decoder.py"],
    "ilm/__init__.py": ["ilm/test_internal_lm.py", "ilm/test_learned_vector.py", "adapters/test_whisper.py"],
    "ilm/attention.py": ["ilm/test_internal_lm.py", "search/test_attention.py", "models/test_networks.py"],
    "ilm/transducer.py": [
        "ilm/test_transducer.py",
        "ilm/test_internal_lm.py",
        "search/test_transducer.py",
        "models/test_networks.py",
    ],
    "ilm/hosted.py": ["ilm/test_internal_lm.py", "ilm/test_ctc.py", "ilm/test_memory.py"],
    "ilm/transformer.py": ["ilm/test_transformer.py", "adapters/test_whisper.py", "adapters/test_patterns.py"],
    "ilm/learned_context.py": ["ilm/test_learned_context.py", "ilm/test_transformer.py", "adapters/test_whisper.py"],
    "ilm/learned_vector.py": ["ilm/test_learned_vector.py", "ilm/test_internal_lm.py"],
    "ilm/memory.py": ["ilm/test_memory.py", "adapters/test_onnx_attention.py", "ilm/test_internal_lm.py"],
    "ilm/files.py": ["ilm/test_files.py", "ilm/test_learned_vector.py", "ilm/test_internal_lm.py"],
    "ilm/check.py": ["ilm/test_internal_lm.py", "testing/test_contract.py", "recogniser/test_own_model.py"],
    "ilm/calibration.py": ["ilm/test_internal_lm.py", "adapters/test_whisper.py"],
    "lm/arpa.py": ["lm/test_arpa.py", "lm/test_ngram.py", "lm/test_kenlm_binary.py", "commands/test_ngram.py"],
    "lm/ngram.py": ["lm/test_ngram.py", "lm/test_ngram_train.py", "commands/test_ngram.py"],
    "lm/ngram_train.py": ["lm/test_ngram_train.py", "commands/test_ngram.py"],
    "lm/mixing.py": ["lm/test_mixing.py", "commands/test_lm.py"],
    "lm/mixture.py": ["lm/test_mixture.py", "commands/test_lm.py"],
    "lm/perplexity.py": ["commands/test_lm.py", "ilm/test_internal_lm.py"],
    "tuning/weight_search.py": ["tuning/test_weight_search.py", "tuning/test_proposals.py", "tuning/test_tuner.py"],
    "tuning/maps.py": ["tuning/test_maps.py", "tuning/test_tuner.py"],
    "tuning/proposals.py": ["tuning/test_proposals.py", "tuning/test_tuner.py"],
    "tuning/stability.py": ["tuning/test_stability.py", "tuning/test_tuner.py"],
    "tuning/error_surface.py": ["tuning/test_error_surface.py", "tuning/test_proposals.py", "tuning/test_tuner.py"],
    "tuning/option_search.py": ["tuning/test_tuner_steps.py", "tuning/test_option_search.py"],
    "tuning/tuner.py": [
        "tuning/test_tuner_steps.py",
        "tuning/test_tuner.py",
        "tuning/test_option_search.py",
        "tuning/test_shares.py",
    ],
    "evaluation/tables.py": ["evaluation/test_tables.py", "evaluation/test_results.py", "commands/test_compare.py"],
    "evaluation/results.py": ["evaluation/test_results.py", "commands/test_evaluate.py"],
    "evaluation/ledger.py": ["evaluation/test_ledger.py", "commands/test_evaluate.py"],
    "evaluation/tuning_result.py": ["tuning/test_tuner.py", "tuning/test_option_search.py", "commands/test_tune.py"],
    "evaluation/metrics.py": ["evaluation/test_metrics.py", "evaluation/test_significance.py"],
}


def nearest(file: str, root: Path = ROOT) -> list[str]:
    """The test files of a module that are there, the nearest first."""
    module = Path(file)
    own = f"{module.parent}/test_{module.stem}.py"
    return [f"tests/{t}" for t in NEAREST.get(file, [own]) if (root / "tests" / t).exists()]


def drawn(count: int) -> list[Change]:
    """The first `count` faults in the order of the seed."""
    package = ROOT / "src" / "ilme"
    defaults = names_with_defaults([ast.parse(p.read_text("utf-8")) for p in sorted(package.rglob("*.py"))])
    paths = [*(p for name in PACKAGES for p in sorted((package / name).glob("*.py"))), *(package / f for f in FILES)]
    found: list[Change] = []
    for path in paths:
        name = path.relative_to(package).as_posix()
        if name not in LEFT_OUT:
            found += changes(name, path.read_text("utf-8"), defaults)
    return sorted(found, key=lambda c: hashlib.sha256(f"{SEED} {c.id}".encode()).hexdigest())[:count]


class Noticed:
    """A pytest plugin that writes down the first failure."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._note(report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        self._note(report)

    def _note(self, report: Any) -> None:
        if report.failed and not self.file.read_text():
            self.file.write_text(report.nodeid)


class Bench:
    """A copy of the tree in which faults are tried."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        skipped = shutil.ignore_patterns("__pycache__", "*.egg-info", ".hypothesis")
        for name in ("src", "tests", "docs", "configs", "experiments", "benchmarks"):
            if (ROOT / name).exists():
                shutil.copytree(ROOT / name, folder / name, ignore=skipped)
        for name in ("pyproject.toml", "README.md", "constraints.txt"):
            shutil.copy(ROOT / name, folder / name)
        # compiled once and checked by hash: only the file with a fault is compiled again
        mode = py_compile.PycInvalidationMode.CHECKED_HASH
        compileall.compile_dir(folder / "src", quiet=2, invalidation_mode=mode)
        self.sound: dict[str, bool] = {}  # which tests pass without a fault

    def attempt(self, change: Change) -> dict[str, Any] | None:
        """Whether the tests notice it, and which; None if that one fails without it."""
        path = self.folder / "src" / "ilme" / change.file
        right = path.read_text("utf-8")
        began = time.perf_counter()
        try:
            path.write_text(change.source, "utf-8")
            by = self._noticed_by(nearest(change.file, self.folder))
        finally:
            path.write_text(right, "utf-8")
        if "::" in by and by not in self.sound:
            self.sound[by] = not self._noticed_by([by])
        if not self.sound.get(by, True):
            return None
        return {
            "id": change.id,
            "file": change.file,
            "line": change.line,
            "change": f"{change.before} → {change.after}",
            "noticed": bool(by),
            "by": by,
            "seconds": round(time.perf_counter() - began, 1),
        }

    def _noticed_by(self, tests: list[str]) -> str:
        """The first test that fails, "time limit" or "crash"; empty if all pass."""
        note = self.folder / "first-failure"
        note.write_text("")
        child = os.fork()
        if not child:
            self._run(tests, note)
        until = time.monotonic() + LIMIT
        while True:
            done, status = os.waitpid(child, os.WNOHANG)
            if done:
                break
            if time.monotonic() > until:
                os.killpg(child, signal.SIGKILL)
                os.waitpid(child, 0)
                return "time limit"
            time.sleep(0.05)
        with contextlib.suppress(ProcessLookupError):  # what a test left behind
            os.killpg(child, signal.SIGKILL)
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGXCPU:
            return "time limit"
        passed = os.WIFEXITED(status) and os.WEXITSTATUS(status) in (0, NO_TESTS)
        return note.read_text() or ("" if passed else "crash")

    def _run(self, tests: list[str], note: Path) -> None:
        """In the child: the tests against the copy, and out."""
        code = 3
        try:
            os.setsid()
            resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
            resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 5))
            os.chdir(self.folder)
            os.environ["PYTHONPATH"] = str(self.folder / "src")
            sys.dont_write_bytecode = True
            for name in [n for n in sys.modules if n.split(".")[0] in ("tests", "ilme")]:
                del sys.modules[name]
            here = {str(ROOT), str(ROOT / "src"), ""}
            sys.path[:] = [str(self.folder / "src"), str(self.folder), *(p for p in sys.path if p not in here)]
            log = os.open(self.folder / "log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
            os.dup2(log, 1)
            os.dup2(log, 2)
            arguments = ["-x", "-q", "--tb=short", f"--rootdir={self.folder}", f"--basetemp={self.folder / 'tmp'}"]
            code = pytest.main([*arguments, *tests], plugins=[Noticed(note)])
        finally:
            os._exit(int(code))


def load() -> dict[str, Any]:
    if RESULTS.exists():
        kept: dict[str, Any] = json.loads(RESULTS.read_text("utf-8"))
        return kept
    return {"seed": SEED, "mutants": [], "equivalent": {}}


def save(kept: dict[str, Any]) -> None:
    part = RESULTS.with_suffix(".part")
    part.write_text(json.dumps(kept, indent=1, ensure_ascii=False) + "\n", "utf-8")
    part.replace(RESULTS)


def prepare() -> None:
    """Loads what most tests load; draws without shrinking, since one failure is all that is asked for."""
    import scipy.stats  # noqa: F401
    import torch
    import transformers  # noqa: F401
    from hypothesis import Phase, settings

    torch.set_num_threads(1)
    settings.register_profile("mutants", derandomize=True, phases=(Phase.explicit, Phase.generate), database=None)
    os.environ["HYPOTHESIS_PROFILE"] = "mutants"


def run(count: int, again: bool, minutes: float) -> None:
    until = time.monotonic() + 60 * minutes
    kept = load()
    sample = drawn(count)
    known = {m["id"]: m for m in kept["mutants"]}
    kept["mutants"] = [known[c.id] for c in sample if c.id in known]  # what the code no longer has is gone
    todo = [c for c in sample if c.id not in known or (again and not known[c.id]["noticed"])]
    todo = [c for c in todo if not (again and c.id in kept["equivalent"])]
    prepare()
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        bench = Bench(Path(folder))
        for number, change in enumerate(todo, 1):
            if time.monotonic() > until:
                break
            found = bench.attempt(change)
            if found is None:
                print(f"left out, its test fails without it: {change.id}", flush=True)
                continue
            known[change.id] = found
            kept["mutants"] = [known[c.id] for c in sample if c.id in known]
            kept["untried"] = len(sample) - len(kept["mutants"])
            save(kept)
            print(
                f"{number}/{len(todo)} {found['seconds']:5.1f} s {found['by'] or 'NOT NOTICED'}: {change.id}",
                flush=True,
            )


def run_known() -> None:
    prepare()
    tried = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        bench = Bench(Path(folder))
        for fault in KNOWN:
            found = bench.attempt(fault.change(ROOT / "src" / "ilme"))
            if found is None:
                raise SystemExit(f"a test fails without any fault: mend it first ({fault.what})")
            tried.append({"what": fault.what, **{k: found[k] for k in ("file", "noticed", "by")}})
            print(
                f"{len(tried)}/{len(KNOWN)} {found['seconds']:5.1f} s {found['by'] or 'NOT NOTICED'}: {fault.what}",
                flush=True,
            )
    save({**load(), "known": tried})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=400, help="how many faults")
    parser.add_argument("--minutes", type=float, default=600.0, help="start no other one after so long")
    parser.add_argument("--again", action="store_true", help="try once more what was not noticed")
    parser.add_argument("--known", action="store_true", help="try those that were once noticed by none")
    parser.add_argument("--page", action="store_true", help="only write the page")
    given = parser.parse_args()
    if given.known:
        run_known()
    elif not given.page:
        run(given.count, given.again, given.minutes)
    PAGE.write_text(page(load()), "utf-8")


if __name__ == "__main__":
    main()
