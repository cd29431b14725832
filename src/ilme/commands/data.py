"""`ilme data import`, `show`, `split` and `shard`: speech corpora from files to cuts that training reads."""

from __future__ import annotations

import json as json_format
import sys
from pathlib import Path
from typing import Literal

from ilme.commands.targets import spare_inputs
from ilme.data.corpora import Layout
from ilme.data.importing import Checks
from ilme.errors import UsageError


def import_corpus(
    source: str,
    out: Path,
    layout: Layout = "auto",
    checks: Checks = Checks(),  # noqa: B008 - frozen, and its fields become options
    strict: bool = False,
    workers: int = 2,
    json: bool = False,
) -> None:
    """Read a speech corpus, check every utterance, and write Lhotse cuts.

    Writes cuts.jsonl.gz (and cuts-SPLIT.jsonl.gz where the corpus names splits), rejected.jsonl with a reason for
    every utterance left out, and import.json with the counts. Accepted + rejected = found.

    Example:
        ilme data import corpora/LibriSpeech/dev-clean out/dev-clean

    Args:
        source: Folder, manifest (.jsonl, .tsv), or hf:NAME[:CONFIG][:SPLIT] for Hugging Face datasets.
        out: Folder to write to.
        layout: How the corpus is laid out; auto looks at its files.
        checks: What to reject.
        strict: Stop at the first utterance that would be rejected.
        workers: Threads that decode audio.
        json: Print the counts as JSON.
    """
    from ilme.data.importing import import_corpus as run

    if workers < 1:
        raise UsageError(f"--workers must be at least 1, got {workers}")

    def progress(done: int, found: int) -> None:
        print(f"\r{done:,} of {found:,} utterances", end="", file=sys.stderr, flush=True)

    spare_inputs(out / "cuts.jsonl.gz", [source])
    watched = sys.stderr.isatty()
    report = run(source, out, layout, checks, strict=strict, workers=workers, progress=progress if watched else None)
    if watched:
        print(file=sys.stderr)
    if json:
        print(json_format.dumps(report.to_json()))
        return
    print(f"found     {report.found:,}")
    print(f"accepted  {report.accepted:,}  ({report.seconds / 3600:.2f} h)  {out / 'cuts.jsonl.gz'}")
    print(f"rejected  {report.rejected:,}  {out / 'rejected.jsonl'}")
    for reason, count in report.reasons.items():
        print(f"  {count:>8,}  {reason}")
    for split, count in report.splits.items():
        print(f"split {split}: {count:,} accepted")


def show(cuts: Path, picture: Path | None = None, json: bool = False) -> None:
    """Print what a corpus holds, and what looks wrong with it.

    Example:
        ilme data show out/dev-clean --picture out/dev-clean.png

    Args:
        cuts: cuts.jsonl.gz or the folder of an import.
        picture: Also draw histograms to this .png, .svg or .pdf file.
        json: Print JSON instead of a table.
    """
    from ilme.data.show import draw_picture, measure_corpus

    if picture is not None and picture.suffix not in (".png", ".svg", ".pdf"):
        raise UsageError(f"a picture is a .png, .svg or .pdf file; got {picture}")
    found = measure_corpus(cuts)
    if picture is not None:
        draw_picture(found, picture, cuts.parent.name if cuts.is_file() else cuts.name)
    if json:
        print(json_format.dumps(found.to_json(), ensure_ascii=False))
        return
    print(f"utterances  {found.utterances:,}\nhours       {found.hours:.2f}\nspeakers    {found.speakers:,}")
    print(f"words       {found.words:,}\nvocabulary  {found.vocabulary:,}")
    print(f"characters  {len(found.characters)}: {found.characters[:80]}")
    print(f"rates       {', '.join(f'{rate} Hz ({count:,})' for rate, count in found.rates.items())}")
    print(f"{'':<18}{'least':>9}{'5 %':>9}{'25 %':>9}{'median':>9}{'75 %':>9}{'95 %':>9}{'most':>9}")
    rows = (
        ("seconds", found.seconds),
        ("words", found.words_each),
        ("letters a second", found.letters_a_second),
    )
    for name, histogram in rows:
        print(f"{name:<18}" + "".join(f"{q:>9.4g}" for q in histogram.quantiles))
    print("lengths  " + _bars(found.seconds.counts) + f"  0 to {found.seconds.edges[-1]:.3g} s")
    for problem in found.problems:
        print(f"look at: {problem}")
    for reason, count in found.rejected.items():
        print(f"left out at import: {count:,} {reason}")


def split(
    cuts: Path,
    out: Path,
    shares: list[str] | None = None,
    by: str = "speaker",
    seed: int = 0,
    json: bool = False,
) -> None:
    """Split a corpus so that no speaker (or call, or chapter) is in two parts.

    Example:
        ilme data split out/corpus out/parts --shares train:0.9 dev:0.05 test:0.05

    Args:
        cuts: cuts.jsonl.gz or the folder of an import.
        out: Folder for cuts-PART.jsonl.gz.
        shares: Parts and their shares of the audio, as NAME:SHARE; default train:0.9 dev:0.05 test:0.05.
        by: speaker, or a field such as call or chapter.
        seed: Another seed, another split.
        json: Print JSON instead of a table.
    """
    from ilme.data.manifests import file_name
    from ilme.data.split import shared_speakers, split_cuts

    wanted = _shares(shares or ["train:0.9", "dev:0.05", "test:0.05"])
    for name in wanted:
        spare_inputs(out / f"cuts-{file_name(name)}.jsonl.gz", [cuts])
    parts = split_cuts(cuts, out, wanted, by, seed)
    heard_twice = shared_speakers([Path(part.file) for part in parts]) if by != "speaker" else []
    if json:
        rows = [part.to_json() for part in parts]
        print(json_format.dumps({"parts": rows, "speakers_in_several_parts": heard_twice}))
        return
    total = sum(part.seconds for part in parts)
    for part in parts:
        print(
            f"{part.name:<8} {part.utterances:>8,} utterances {part.seconds / 3600:>9.2f} h "
            f"({100 * part.seconds / total:.1f} %, wanted {100 * part.share:.1f} %) {part.groups:>6,} {by}s"
            f"  {part.file}"
        )
    if heard_twice:
        print(f"look at: {len(heard_twice)} speakers are in several parts, since the split is by {by}")


def shard(cuts: Path, out: Path, size: int = 1000, audio: Literal["flac", "wav", "mp3", "original"] = "flac") -> None:
    """Pack a corpus into Lhotse Shar shards, read from front to back instead of file by file.

    Example:
        ilme data shard out/corpus out/shards --size 1000

    Args:
        cuts: cuts.jsonl.gz or the folder of an import.
        out: Folder for the shards.
        size: Utterances in a shard.
        audio: How the audio is stored; original copies the bytes as they are.
    """
    from ilme.data.shards import write_shards

    print(f"{write_shards(cuts, out, size, audio)} shards in {out}")


def _shares(texts: list[str]) -> dict[str, float]:
    shares: dict[str, float] = {}
    for text in texts:
        name, colon, share = text.partition(":")
        try:
            shares[name] = float(share)
        except ValueError as error:
            raise UsageError(f"--shares: {text!r} is not NAME:SHARE, such as dev:0.05") from error
        if not name or not colon:
            raise UsageError(f"--shares: {text!r} is not NAME:SHARE, such as dev:0.05")
    return shares


def _bars(counts: list[int]) -> str:
    """A histogram in one line."""
    top = max(max(counts), 1)
    return "".join(" ▁▂▃▄▅▆▇█"[-(-8 * count // top)] for count in counts)
