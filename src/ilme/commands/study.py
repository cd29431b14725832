"""`ilme study` and its commands: status, gather, pack, unpack, bundle."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ilme.study.runner import Study


def study(
    plan: Path,
    out: Path | None = None,
    only: list[str] | None = None,
    until: str = "",
    minutes: float = 0.0,
    device: str = "auto",
    processes: int = 1,
    at_once: int = 1,
    change: list[str] | None = None,
) -> None:
    """Run the paper's experiment, stage by stage; what is done already is passed over.

    Example:
        ilme study configs/study/tiny.yaml --out out/study/tiny

    Args:
        plan: The study, such as configs/study/tiny.yaml.
        out: Its folder; out/study/NAME by default.
        only: Run these stages, and those they need.
        until: The last stage to run.
        minutes: Stop in good order after about so long; the same command goes on.
        device: cpu, cuda, or auto.
        processes: How many methods are tuned, or tested, at a time; a large GPU has room for all of them.
        at_once: How many stages that need not wait for each other run at the same time, each in a process of its own.
        change: Fields of the plan to change: NAME:VALUE, such as speech.hours:2.
    """
    built = _build(plan, out, device, change, processes)
    if at_once < 2:
        built.run(only or (), until, minutes)
        return
    from ilme.study.at_once import run_at_once, started

    built.limit(minutes)
    same = ["--out", str(built.out), "--device", device, "--processes", str(processes)]
    same += ["--change", *change] if change else []

    def start(name: str) -> Any:
        left = ["--minutes", str(built.minutes_left())] if minutes else []
        return started(["study", str(plan), "--only", name, *left, *same])

    run_at_once(built, built.select(only or (), until), start, at_once)


def status(plan: Path, out: Path | None = None, change: list[str] | None = None) -> None:
    """List the stages of a study and which of them are done.

    Example:
        ilme study status configs/study/tiny.yaml

    Args:
        plan: The study.
        out: Its folder.
        change: As for `ilme study`.
    """
    built = _build(plan, out, "auto", change)
    for name in built.stages:
        print(f"{'done' if built.done(name) else '    '}  {name}")


def gather(plan: Path, folder: Path, sizes: list[float] | None = None, change: list[str] | None = None) -> None:
    """Write what a study on recordings reads as FOLDER-1/recordings.zip, FOLDER-2/recordings.zip and so on.

    Example:
        ilme study gather configs/study/small.yaml out/recordings --sizes 60

    Args:
        plan: The study.
        folder: Name of the folders, without their numbers.
        sizes: Most MiB of each file, in turn; the last one counts for all that follow.
        change: As for `ilme study`.
    """
    from ilme.study.config import read_config
    from ilme.study.export import gather as write

    for path in write(read_config(plan, _changes(change)), folder, sizes or (60.0,)):
        print(f"{path}  {path.stat().st_size / 2**20:.1f} MiB")


def pack(
    plan: Path,
    to: Path,
    out: Path | None = None,
    only: list[str] | None = None,
    change: list[str] | None = None,
) -> None:
    """Pack the finished stages into a few files; weights as float16, without the training speech.

    Example:
        ilme study pack configs/study/small.yaml out/packed

    Args:
        plan: The study.
        to: Folder for the files.
        out: The study's folder.
        only: Some of the files: speech, lm-source, lm-target, lm-mixed, rnnt, aed, results.
        change: As for `ilme study`.
    """
    from ilme.errors import BadInputError
    from ilme.study.archive import pack as write

    written = write(_build(plan, out, "auto", change), to, only or ())
    if not written:
        raise BadInputError("no stage of this study is finished, so there is nothing to pack; run `ilme study` first")
    for path in written:
        print(f"{path}  {path.stat().st_size / 2**20:.1f} MiB")


def unpack(parcels: Path, out: Path) -> None:
    """Put stages that `ilme study pack` wrote into a study's folder.

    Example:
        ilme study unpack out/packed out/study/small

    Args:
        parcels: The folder with its files, or one of them.
        out: The study's folder.
    """
    from ilme.study.archive import unpack as read

    print(f"{', '.join(read(parcels, out))} -> {out}")


def bundle(
    study: Path,
    folder: Path | None = None,
    dev: int = 200,
    test: int = 300,
    beam: int = 8,
) -> None:
    """Build the embedded default from a study's outputs: networks in 8 bits, recordings, weights, a card.

    Example:
        ilme study bundle out/study/small

    Args:
        study: The study's folder, or a folder with its unpacked parcels.
        folder: Where to; the package's own bundle by default.
        dev: Utterances of the target dev set.
        test: Utterances of the target test set.
        beam: Of the demonstration's search.
    """
    from ilme.study.bundling import BundleOptions, build_bundle
    from ilme.workflows.bundle import FOLDER

    built = build_bundle(study, folder or FOLDER, BundleOptions(dev=dev, test=test, beam=beam))
    size = sum(path.stat().st_size for path in built.folder.iterdir())
    print(f"{built.folder}: {len(built.systems)} systems, {size / 1e6:.1f} MB")


def _build(plan: Path, out: Path | None, device: str, change: list[str] | None, processes: int = 1) -> Study:
    from ilme.study.config import read_config
    from ilme.study.stages import build_study

    config = read_config(plan, _changes(change))
    return build_study(config, out or Path("out/study") / config.name, device, processes)


def _changes(change: list[str] | None) -> dict[str, Any]:
    """NAME:VALUE pairs, the values read as YAML."""
    import yaml

    from ilme.errors import UsageError

    values = {}
    for text in change or ():
        name, colon, value = text.partition(":")
        if not colon:
            raise UsageError(f"--change {text}: expected NAME:VALUE, such as speech.hours:2")
        values[name] = yaml.safe_load(value)
    return values
