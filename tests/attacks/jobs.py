"""Commands that write, at the smallest size: what tests kill, starve of disk and run twice at once.

A job runs in a forked process of this one, which has all modules loaded, so a run takes as long as its work. It can be
killed before the n-th change that it makes to files below its folder, after some seconds, or not at all.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib
import json
import os
import random
import re
import shutil
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lhotse import CutSet, MonoCut, Recording, SupervisionSegment

from ilme import cli
from ilme.data.tokenfile import write_tokens
from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.data.utterances import Reference
from ilme.evaluation.results import Results, System
from ilme.fusion import FusionWeights
from tests.attacks.cases import PATIENCE, Run
from tests.attacks.gathered import (
    PLANS,
    write_begun_study,
    write_corpora,
    write_decoders,
    write_finished_study,
    write_package,
)
from tests.checkpoints import TEXTS, write_checkpoints, write_set, write_wave

ROOT = Path(__file__).parents[2]
CLOCKS = {"seconds", "training_seconds", "hours_per_second", "when"}  # fields that a clock writes
CLOCK = re.compile(r"\d+(\.\d+)?( s\b| seconds)")
CHANGES = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.truncate", "os.link", "os.symlink"}  # audit events
F_SETPIPE_SZ = 1031
NEEDED = ("lightning_fabric", "torch._dynamo", "matplotlib.pyplot", "rich.console", "rich.progress", "scipy.signal")


@dataclass(frozen=True)
class Job:
    """One command.

    Attributes:
        name: What it is called.
        words: The command, given the inputs and the folder that it writes.
        ignored: Patterns of files that are not part of what it makes.
        before: Lays out what is in the folder before the first run.
    """

    name: str
    words: Callable[[Path, Path], list[str]]
    ignored: tuple[str, ...] = ()
    before: Callable[[Path, Path], None] = lambda inputs, out: None


def make_inputs(folder: Path) -> Path:
    """Models, sets, text and training data for all jobs."""
    write_checkpoints(folder, ["rnnt", "lm"])
    write_set(folder, "dev", TEXTS[:4])
    write_set(folder, "test", TEXTS[:5])
    (folder / "text.txt").write_text("the sea was calm\nthe whale swam\n" * 5)
    (folder / "other.txt").write_text("the captain saw a whale of a time\n" * 5)
    for k in range(4):
        write_wave(folder / "audio" / f"{'xy'[k % 2]}" / f"{k}.wav", 0.4 + 0.1 * k, k)
    _write_corpus(folder)
    references = {f"u{k}": Reference(text, "ann", 1.0) for k, text in enumerate(TEXTS[:4])}
    system = System("rnnt", "BS", FusionWeights(), {i: r.text for i, r in references.items()})
    Results("dev", "none", references, (system,)).save(folder / "results.json")
    write_decoders(folder)
    write_corpora(folder / "corpora")
    write_package(folder / "cache", folder / "package")
    write_finished_study(folder / "finished")
    write_begun_study(folder)
    return folder


def _write_corpus(folder: Path) -> None:
    """Cuts, word pieces and a token file of the dev set."""
    cuts = []
    for k, text in enumerate(TEXTS[:4]):
        recording = Recording.from_file(folder / f"dev{k}.wav")
        supervision = SupervisionSegment(f"s{k}", recording.id, 0, recording.duration, text=text, speaker=f"s{k % 2}")
        cuts.append(MonoCut(f"c{k}", 0, recording.duration, 0, recording=recording, supervisions=[supervision]))
    CutSet.from_cuts(cuts).to_file(folder / "cuts.jsonl.gz")
    tokenizer = SentencePieceTokenizer.train(TEXTS * 3, vocab_size=28)
    tokenizer.save(folder / "bpe.model")
    write_tokens(folder / "text.tok", map(tokenizer.encode, TEXTS), tokenizer.tokens, tokenizer.to_json())


def _adapt(text: str) -> Callable[[Path, Path], list[str]]:
    return lambda inputs, out: [
        "adapt", "--model", str(inputs / "rnnt"), "--text", str(inputs / text), "--dev", str(inputs / "dev.jsonl"),
        "--out", str(out), "--options.order", "2", "--options.prune", "0", "--options.beam", "2",
        "--options.calibration", "2", "--options.max_decodes", "2", "--options.normaliser", "none",
        "--options.internal", "removed",
    ]  # fmt: skip


def _transcribe(inputs: Path, out: Path) -> list[str]:
    return [
        "transcribe", str(inputs / "audio"), "--model", str(inputs / "rnnt"), "--out", str(out),
        "--formats", "txt", "json", "--batch_size", "1",
    ]  # fmt: skip


def _tune(inputs: Path, out: Path) -> list[str]:
    return [
        "tune", str(inputs / "rnnt"), str(inputs / "dev.jsonl"), str(out), "--lm", str(inputs / "lm"),
        "--tuning.beam", "2", "--tuning.replicates", "2", "--tuning.grid", "2", "--tuning.max_decodes", "3",
        "--tuning.restarts", "1", "--decoding.batch_size", "2",
    ]  # fmt: skip


def _evaluate(inputs: Path, out: Path) -> list[str]:
    return [
        "evaluate", str(inputs / "rnnt"), str(inputs / "test.jsonl"), str(out), "--lm", str(inputs / "lm"),
        "--beam", "2", "--decoding.batch_size", "1", "--details", "2",
    ]  # fmt: skip


def _train(kind: str, *more: str) -> Callable[[Path, Path], list[str]]:
    return lambda inputs, out: [
        "train", kind, "--preset", "tiny", "--loop.steps", "6", "--loop.log_every", "2", "--loop.evaluate_every", "2",
        "--loop.save_every", "2", "--loop.keep", "1", "--loop.tensorboard", "false", "--optimiser.warmup", "2",
        "--resume", "--out", str(out), *(word.replace("INPUTS", str(inputs)) for word in more),
    ]  # fmt: skip


SPEECH = ("--data.train", "INPUTS/cuts.jsonl.gz", "--data.held_out", "INPUTS/cuts.jsonl.gz", "--data.tokenizer",
          "INPUTS/bpe.model", "--data.batch.seconds", "2", "--data.batch.longest", "2")  # fmt: skip
STUDY = {
    "speech.hours": 0.004, "speech.held_out": 2, "speech.dev": 2, "speech.test": 2, "speech.voices": 2,
    "rnnt.loop.steps": 4, "rnnt.loop.save_every": 2, "rnnt.loop.evaluate_every": 2, "rnnt.loop.ilm_every": 4,
    "aed.loop.steps": 2, "aed.loop.save_every": 2, "aed.loop.evaluate_every": 2, "aed.loop.ilm_every": 2,
    "lm.loop.steps": 2, "lm.loop.evaluate_every": 2, "source_lm.loop.steps": 2, "source_lm.loop.evaluate_every": 2,
    "decoding.methods": "[BS, ILME]", "decoding.decodes": 1, "decoding.replicates": 2, "decoding.max_length": 4,
    "decoding.details": 0,
}  # fmt: skip


def _study(inputs: Path, out: Path) -> list[str]:
    changes = [f"{name}:{value}" for name, value in STUDY.items()]
    return ["study", str(ROOT / "configs" / "study" / "tiny.yaml"), "--out", str(out), "--device", "cpu",
            "--change", *changes]  # fmt: skip


def _adapted_before(inputs: Path, out: Path) -> None:
    """The folder of another text, adapted once for all moments."""
    if not (inputs / "adapted").exists():
        words = _adapt("other.txt")(inputs, inputs / "adapted")
        place = words.index("--dev")
        assert run([*words[:place], *words[place + 2 :]], inputs).status == 0  # with weights for its internal LM
    shutil.copytree(inputs / "adapted", out)


def _made_before(*words: str) -> Callable[[Path, Path], None]:
    """What the command made with other options."""

    def before(inputs: Path, out: Path) -> None:
        assert run(_named(*words)(inputs, out), inputs).status == 0

    return before


def _named(*words: str) -> Callable[[Path, Path], list[str]]:
    """A command in which INPUTS and OUT stand for the folders."""
    return lambda inputs, out: [w.replace("INPUTS", str(inputs)).replace("OUT", str(out)) for w in words]


DECODED = ("*.jsonl", ".ilme-transcribe/*")  # journals: in another order, or once more
JOBS = {
    job.name: job
    for job in (
        Job("adapt", _adapt("text.txt")),
        Job("adapt again", _adapt("text.txt"), before=_adapted_before),
        Job("adapt networks", lambda inputs, out: [*_adapt("text.txt")(inputs, out), "--minutes", "5"]),
        Job("transcribe", _transcribe, DECODED),
        Job("tune", _tune, DECODED),
        Job("evaluate", _evaluate, DECODED),
        Job("train rnnt", _train("rnnt", *SPEECH), ("curves.png",)),
        Job("train lm", _train("lm", "--data.train", "INPUTS/text.tok", "--data.held_out", "INPUTS/text.tok",
                               "--data.tokens", "40"), ("curves.png",)),
        # tables.md has seconds of training in a column, and else what its JSON files have
        Job("study", _study, ("curves.png", "*.svg", "*.html", "study.json", "tables.md", "part-*.jsonl")),
    )
}  # fmt: skip


DOMAINS = ("data", "domains", "dictionary", "OUT", "--cache", "INPUTS/cache")
BUNDLE = ("study", "bundle", "INPUTS/finished", "--folder", "OUT", "--dev", "2", "--test", "2")
OTHERS = {  # every other command that writes
    job.name: job
    for job in (
        Job("text prepare", _named("text", "prepare", "INPUTS/text.txt", "OUT")),
        Job("text bpe", _named("text", "bpe", "INPUTS/text.txt", "OUT/bpe.model", "--vocab_size", "20")),
        Job("text tokenize", _named("text", "tokenize", "INPUTS/text.txt", "INPUTS/bpe.model", "OUT/text.tok")),
        Job("ngram train", _named("ngram", "train", "INPUTS/text.tok", "--order", "2", "--out", "OUT/lm.arpa")),
        Job("ngram train, gzip", _named("ngram", "train", "INPUTS/text.tok", "--order", "2", "--out", "OUT/a.arpa.gz")),
        Job("ngram train, safetensors",
            _named("ngram", "train", "INPUTS/text.tok", "--order", "2", "--out", "OUT/lm.safetensors")),
        Job("lm replace", _named("lm", "replace", "INPUTS/component", "INPUTS/inner", "OUT/aed")),
        Job("lm mix", _named("lm", "mix", "INPUTS/lm", "INPUTS/lm", "OUT/mix.json", "--text", "INPUTS/text.txt")),
        Job("ilm learn",
            _named("ilm", "learn", "INPUTS/rnnt", "INPUTS/text.txt", "OUT/i.safetensors", "--options.epochs", "1")),
        Job("export onnx", _named("export", "onnx", "INPUTS/rnnt", "OUT/onnx")),
        Job("data import", _named("data", "import", "INPUTS/dev.jsonl", "OUT")),
        Job("data split", _named("data", "split", "INPUTS/cuts.jsonl.gz", "OUT", "--shares", "train:0.5", "dev:0.5")),
        Job("data shard", _named("data", "shard", "INPUTS/cuts.jsonl.gz", "OUT", "--size", "2")),
        Job("data show", _named("data", "show", "INPUTS/cuts.jsonl.gz", "--picture", "OUT/hours.png")),
        Job("data domains", _named(*DOMAINS)),
        Job("data domains again", _named(*DOMAINS), before=_made_before(*DOMAINS, "--options.profile", "written")),
        Job("data synth", _named("data", "synth", "INPUTS/text.txt", "OUT", "--options.limit", "2",
                                 "--options.workers", "1")),
        Job("compare", _named("compare", "INPUTS/results.json", "--out", "OUT/all.json")),
        Job("report", _named("report", "INPUTS/results.json", "--out", "OUT/report.html", "--audio", "0")),
        Job("train aed", _train("aed", *SPEECH), ("curves.png",)),
        Job("study gather", _named("study", "gather", str(PLANS / "real-tiny.yaml"), "OUT/part", "--sizes", "0.08",
                                   "--change", "recordings.roots:[INPUTS/corpora]")),
        Job("study pack", _named("study", "pack", str(PLANS / "tiny.yaml"), "OUT", "--out", "INPUTS/begun")),
        Job("study unpack", _named("study", "unpack", "INPUTS/packed", "OUT")),
        Job("study bundle", _named(*BUNDLE)),
        Job("study bundle again", _named(*BUNDLE), before=_made_before(*BUNDLE, "--beam", "1")),
        Job("demo", _named("demo", "--out", "OUT", "--model", "rnnt", "--method", "BS", "--utterances", "1",
                           "--processes", "1")),
    )
}  # fmt: skip


# --- running ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Moment:
    """When a job is killed.

    Attributes:
        change: Before its so-manieth change of a file; 0 never.
        seconds: After so long; 0 never.
        torn: Cut off so much of the last line of every journal, as a power cut may.
    """

    change: int = 0
    seconds: float = 0.0
    torn: int = 0


def preload() -> None:
    """Imports what jobs import, so that a forked process does not."""
    for target, _ in cli.COMMANDS.values():
        importlib.import_module(target.split(":")[0])
    for name in NEEDED:
        try:
            importlib.import_module(name)
        except ImportError:
            continue


def run(words: list[str], folder: Path, moment: Moment | None = None, inside: Callable[[], None] | None = None) -> Run:
    """A command in a forked process; `inside` is called there first.

    Its status is below 0 for a signal, its `out` the number of changes to files below the folder, its `err` all that it
    said.
    """
    return start(words, folder, moment, inside).wait()


@dataclass(frozen=True)
class Started:
    """A command that runs."""

    process: int
    seconds: float
    told: int
    said: int

    def wait(self) -> Run:
        status = _ended(self.process, self.seconds)
        return Run(status, _read(self.said) or "0", _read(self.told))

    def wait_for_stop(self) -> bool:
        """Whether it stopped itself (`stop_at`); False if it ended without."""
        _, status = os.waitpid(self.process, os.WUNTRACED)
        return os.WIFSTOPPED(status)

    def go_on(self) -> None:
        os.kill(self.process, signal.SIGCONT)


def start(
    words: list[str], folder: Path, moment: Moment | None = None, inside: Callable[[], None] | None = None
) -> Started:
    moment = moment or Moment()
    (told, tells), (said, says) = os.pipe(), os.pipe()
    fcntl.fcntl(tells, F_SETPIPE_SZ, 1 << 20)  # room for all of it: it is read at the end
    child = os.fork()
    if child == 0:
        _serve(words, folder, moment, tells, says, inside)
    for end in (tells, says):
        os.close(end)
    return Started(child, moment.seconds, told, said)


def signal_at(folder: Path, change: int, number: int) -> Callable[[], None]:
    """Sends the process a signal before its so-manieth change below the folder."""

    def inside() -> None:
        count = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal count
            if changed(event, arguments).startswith(f"{folder}{os.sep}"):
                count += 1
                if count == change:
                    os.kill(os.getpid(), number)

        sys.addaudithook(hook)

    return inside


def _read(pipe: int) -> str:
    with os.fdopen(pipe, "rb") as stream:
        return stream.read().decode("utf-8", "backslashreplace")


def _serve(
    words: list[str], folder: Path, moment: Moment, told: int, said: int, inside: Callable[[], None] | None
) -> None:
    """The life of the forked process."""
    status = 99
    try:
        signal.alarm(0)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (signal.SIGTERM, signal.SIGHUP):  # which `nohup make attacks` hands on as ignored
            signal.signal(number, signal.SIG_DFL)
        for number in (1, 2):
            os.dup2(told, number)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        os.chdir(ROOT)
        count = _watch(folder, moment.change)
        if inside is not None:
            inside()
        status = cli.main(words)
        sys.stdout.flush()
        os.write(said, str(count[0]).encode())
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def changed(event: str, arguments: tuple[Any, ...]) -> str:
    """The path that an audit event is about to change; empty if it changes none."""
    if event == "open":
        path, _, flags = arguments
        return path if isinstance(path, str) and flags & (os.O_WRONLY | os.O_RDWR | os.O_CREAT) else ""
    return os.fsdecode(arguments[0]) if event in CHANGES and not isinstance(arguments[0], int) else ""


def _watch(folder: Path, last: int) -> list[int]:
    """Counts the changes below the folder that Python makes, and kills this process before the last."""
    count, inside = [0], f"{folder}{os.sep}"

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if changed(event, arguments).startswith(inside):
            count[0] += 1
            if count[0] == last:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(hook)
    return count


def _ended(child: int, seconds: float) -> int:
    """Waits for the process, and kills it after so many seconds."""
    begun = time.monotonic()
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        elapsed = time.monotonic() - begun
        if (seconds and elapsed > seconds) or elapsed > PATIENCE:
            os.kill(child, signal.SIGKILL)
            seconds = 0.0 if elapsed < PATIENCE else seconds
        time.sleep(0.002)


def moments(changes: int, seconds: float, count: int, seed: int) -> Iterator[Moment]:
    """Half of them before changes, drawn without repetition, the rest at random times; a third tears journals."""
    draw = random.Random(seed)
    before = draw.sample(range(1, changes + 1), min(changes, (count + 1) // 2))
    for k in range(count):
        torn = draw.randrange(1, 40) if k % 3 == 2 else 0
        if k < len(before):
            yield Moment(change=before[k], torn=torn)
        else:
            yield Moment(seconds=draw.uniform(0.01, seconds), torn=torn)


def tear(folder: Path, length: int) -> None:
    """Cuts off the end of the last line of every journal, never more than that line, nor what is on the disk before
    something else is: a transcript's begin, metrics before a checkpoint.
    """
    journals = ("metrics.jsonl", "part-*.jsonl", ".ilme-transcribe/*.jsonl")  # all else is written whole
    for file in [file for pattern in journals for file in folder.rglob(pattern)]:
        content = file.read_bytes()
        line = content.rstrip(b"\n").split(b"\n")[-1]
        done = any((parent / "done.json").exists() for parent in file.parents)  # nobody reads it again
        if content.count(b"\n") > 1 and not done and not _synced(file, line):
            os.truncate(file, len(content) - min(length, len(line) - 1))


def _synced(file: Path, line: bytes) -> bool:
    if file.name != "metrics.jsonl":
        return b'"state": null' in line
    saved = [int(path.name[5:]) for path in (file.parent / "checkpoints").glob("step-*")]
    row = json.loads(line) if line.endswith(b"}") else {}
    return bool(row.get("step", 0) <= max(saved, default=0))


# --- what a job made --------------------------------------------------------------------------------------------------


def made(folder: Path, ignored: tuple[str, ...] = ()) -> dict[str, Any]:
    """Every file below the folder by its path, without what a clock wrote."""
    found: dict[str, Any] = {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file()):
        name = path.relative_to(folder)
        if any(name.match(pattern) for pattern in ignored):
            continue
        found[str(name)] = _content(path)
    return found


def _content(path: Path) -> Any:
    if path.suffix == ".json":
        data = _timeless(json.loads(path.read_text()))
        if path.name == "domain.json" and "files" in data:  # whose hashes are those of headers in any order, too
            data["files"] = sorted(data["files"])
        return data
    if path.suffix == ".jsonl":
        return [_timeless(json.loads(line)) for line in path.read_text().splitlines() if line]
    if path.suffix in (".md", ".txt"):
        return CLOCK.sub("", _without_seconds(path.read_text()))
    content = path.read_bytes()
    if path.suffix == ".safetensors":  # its header has its entries in any order
        end = 8 + int.from_bytes(content[:8], "little")
        return json.loads(content[8:end]), hashlib.sha256(content[end:]).hexdigest()
    return hashlib.sha256(content).hexdigest()


def _without_seconds(text: str) -> str:
    """Tables without their last column where its head says that it holds seconds."""
    lines, timed = [], False
    for line in text.splitlines():
        timed = line.startswith("|") and (timed or line.endswith("(s) |"))
        lines.append(line.rsplit("|", 2)[0] if timed else line)
    return "\n".join(lines)


def _timeless(data: Any) -> Any:
    if isinstance(data, dict):
        return {k: _timeless(v) for k, v in data.items() if k not in CLOCKS}
    return [_timeless(x) for x in data] if isinstance(data, list) else data
