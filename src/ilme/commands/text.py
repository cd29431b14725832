"""`ilme text prepare`, `ilme text bpe`, `ilme text tokenize`."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from ilme.commands.targets import spare_inputs
from ilme.data.text import PrepareOptions
from ilme.errors import BadInputError, UsageError


def prepare(
    inputs: list[str],
    out: str,
    exclude: list[str] | None = None,
    options: PrepareOptions = PrepareOptions(),  # noqa: B008 – frozen
    strict: bool = False,
) -> int:
    """Prepare text for a language model: read, split into sentences, normalise, exclude, deduplicate.

    Writes OUT/train.txt, OUT/heldout.txt, OUT/excluded.jsonl and OUT/report.json, one sentence to a line.

    Example:
        ilme text prepare corpus.txt.gz more/*.txt out/text --exclude test.txt

    Args:
        inputs: Files and globs: plain text, .gz, .xz, .bz2, tar archives, .jsonl manifests with a field `text`.
        out: Folder to write.
        exclude: Evaluation texts or manifests; a sentence that shares 8 words in a row with one of them is left out.
        options: How to prepare.
        strict: End with status 1 if anything could not be read.
    """
    from ilme.data.text import prepare as run
    from ilme.data.textfiles import expand

    for name in ("train", "heldout"):
        spare_inputs(Path(out) / f"{name}.txt", expand([*inputs, *(exclude or ())]))
    began = time.perf_counter()
    report = run(inputs, out, exclude or (), options)
    for problem in report.problems[:20]:
        print(f"problem: {problem['name']}: {problem['reason']}")
    if len(report.problems) > 20:
        print(f"problem: {len(report.problems) - 20} more in {Path(out) / 'report.json'}")
    seconds = time.perf_counter() - began
    words = report.train_words + report.heldout_words
    rate = words / seconds * 60
    print(f"{report.texts} texts, {report.found} sentences found in {seconds:.1f} s ({rate:.3g} words a minute)")
    for name, sentences, words in (
        ("train", report.train, report.train_words),
        ("heldout", report.heldout, report.heldout_words),
    ):
        print(f"{name:<8} {sentences:>10} sentences {words:>12} words -> {Path(out) / name}.txt")
    for reason, count in sorted(report.dropped.items()):
        print(f"left out {count:>10} sentences: {reason}")
    return 1 if strict and report.problems else 0


def bpe(inputs: list[str], out: str, vocab_size: int = 4000, coverage: float = 1.0, threads: int = 2) -> None:
    """Train word pieces (sentencepiece BPE) on text, one sentence to a line.

    Example:
        ilme text bpe out/text/train.txt out/bpe.model --vocab_size 4000

    Args:
        inputs: Files and globs of text, as `ilme text prepare` writes it.
        out: The sentencepiece model to write.
        vocab_size: All ids, the special slot and <unk> included.
        coverage: Share of the characters that get a piece.
        threads: Threads; the result does not depend on it.
    """
    from ilme.data.textfiles import expand
    from ilme.data.tokenize import text_lines
    from ilme.data.tokenizer import SentencePieceTokenizer

    _check_target(out, expand(inputs), threads)
    if vocab_size < 1:
        raise UsageError(f"--vocab_size must be at least 1, not {vocab_size}")
    tokenizer = SentencePieceTokenizer.train(text_lines(inputs), vocab_size, coverage=coverage, threads=threads)
    tokenizer.save(out)
    print(f"{len(tokenizer)} ids -> {out}")


def tokenize(inputs: list[str], tokenizer: str, out: str, threads: int = 2) -> None:
    """Write text as a memory-mapped token file, each sentence followed by the end of sentence.

    Example:
        ilme text tokenize out/text/train.txt out/bpe.model out/train.tok

    Args:
        inputs: Files and globs of text, one sentence to a line.
        tokenizer: A sentencepiece model, as `ilme text bpe` writes it, or a checkpoint of ours, for an LM that is to go
            with that model.
        out: The token file to write.
        threads: Threads of the tokenizer.
    """
    from ilme.data.textfiles import expand
    from ilme.data.tokenize import text_lines, tokenize_text
    from ilme.recogniser.loading import find_tokenizer

    _check_target(out, [*expand(inputs), tokenizer], threads)
    if next(text_lines(inputs), None) is None:
        raise BadInputError(f"{', '.join(inputs)}: there is no text in it, so there is nothing to tokenize")
    began = time.perf_counter()
    counts = tokenize_text(inputs, find_tokenizer(tokenizer, ()), out, threads)
    share = counts.unknown / max(counts.ids, 1)
    print(f"{counts.sentences} sentences, {counts.words} words, {counts.ids} ids -> {out}")
    print(f"{counts.unknown} unknown ids ({share:.3%}); {time.perf_counter() - began:.1f} s")


def _check_target(out: str, inputs: Iterable[str | Path], threads: int) -> None:
    """What can be known before the text is read."""
    if Path(out).is_dir():
        raise UsageError(f"{out} is a folder; name the file to write, such as {Path(out) / 'bpe.model'}")
    if threads < 1:
        raise UsageError(f"--threads must be at least 1, not {threads}")
    spare_inputs(out, inputs)
