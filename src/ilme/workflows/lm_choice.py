"""Which LM a domain gets: what the text's size, the time and the device allow, and what predicts held-out lines best.

    plan → each LM is trained on nine tenths of the lines → linear weights by EM on the rest (`ilme.lm.mixing`)
         → the smallest mixture that is as good as the best → the n-gram in it is made anew from all lines

    n-gram     seconds; always there
    decoder    the model's own decoder, from the first line on: it knows the language already
    lstm       starts from nothing, so it needs text, and time to read it

Without minutes, `auto` is the n-gram of all lines and nothing is held out.
"""

from __future__ import annotations

import hashlib
import itertools
import math
import random
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ilme.errors import BadInputError, MissingExtraError
from ilme.ilm.decoder_lm import decoder_lm, has_open_decoder
from ilme.ilm.files import fingerprint
from ilme.lm.mixing import Mixture, best_weights, token_scores, write_mixture
from ilme.lm.ngram import NGramScorer, lm_tokens
from ilme.lm.ngram_train import TrainedNGram
from ilme.protocols import TokenScorer
from ilme.recogniser.domain import LM
from ilme.recogniser.loading import load_lm
from ilme.runtime.files import write_text
from ilme.runtime.processes import ordered_map
from ilme.workflows.domain_lm import MIXTURE, DomainText, LMOptions, NGramCounter, flat, ngram_lm, train_ngram_lm
from ilme.workflows.neural_lm import NEURAL, can_train, lstm_config, train_neural_lm

__all__ = ["KINDS", "ChosenLM", "Share", "choose_lm", "hold_out", "plan", "smallest_mixture", "work_folder"]

KINDS = ("auto", "ngram", "lstm", "decoder")
MINUTES = 5.0  # of a network that was asked for by name
FEWEST_LSTM = 100_000  # tokens of text from which an LSTM can learn more than counts show
LSTM_READS = 1_000_000  # tokens that it must have the time to read
SPEEDS = {"cpu": 2e10, "cuda": 3e13}  # operations a second that training gets out of a device, about
HELD = {"cpu": 4_000, "cuda": 100_000}  # most tokens that are held out: they are scored again and again
MUCH = 1_000_000  # tokens of text that take half a minute to count
WORTH = 0.01  # by how much an LM must lower the perplexity of a mixture to be in it: each costs time in every search
Say = Callable[[str], None]


@dataclass(frozen=True)
class Share:
    """A kind of LM, and the minutes it gets; 0 as long as it takes."""

    kind: str
    minutes: float = 0.0


@dataclass(frozen=True)
class ChosenLM:
    """The LM of a domain.

    Attributes:
        scorer: The LM.
        name: Its file in the domain folder.
        about: Perplexities, weights and times, for the card.
    """

    scorer: TokenScorer
    name: str
    about: dict[str, Any]

    @property
    def kinds(self) -> tuple[str, ...]:
        """What it is made of."""
        return tuple(self.about["weights"])


def plan(lm: str, host: Any, tokens: int, minutes: float, style: str, say: Say) -> tuple[Share, ...]:
    """Which LMs are trained, and for how long.

    Args:
        lm: One of KINDS.
        host: The model.
        tokens: Of the text.
        minutes: For training all of them; 0 is none for `auto`, and MINUTES for a network that is named.
        style: How the LM reads the model's tokens.
        say: Told why something is left out.
    """
    if lm not in KINDS:
        raise BadInputError(f"lm is one of {', '.join(KINDS)}, not {lm!r}")
    obstacle = _no_decoder(host, style)
    if lm == "decoder" and obstacle:
        raise BadInputError(f"--lm decoder: {obstacle}; take --lm ngram or --lm lstm")
    if lm in NEURAL:
        if not can_train():
            raise MissingExtraError("lightning-fabric", "train")
        return (Share(lm, minutes or MINUTES),)
    if lm == "ngram" or not minutes:
        return (Share("ngram"),)
    if not can_train():
        say("no neural LM: lightning-fabric is not installed (pip install 'ilme[train]'); the n-gram alone is trained")
        return (Share("ngram"),)
    if obstacle:
        say(f"no decoder LM: {obstacle}")
    networks = [] if obstacle else ["decoder"]
    networks += ["lstm"] if _worth_an_lstm(host, tokens, minutes / (len(networks) + 1)) else []
    return (Share("ngram"), *(Share(kind, minutes / len(networks)) for kind in networks))


def _no_decoder(host: Any, style: str) -> str:
    """Why the model's decoder cannot be the LM; empty if it can."""
    if not has_open_decoder(host):
        return f"the weights of this {host.kind!r} are not open, as in ONNX, or its decoder has an LM inside"
    if style == "fold":
        return "a decoder cannot pass over case and punctuation, which the style `fold` asks for"
    return ""


def _worth_an_lstm(host: Any, tokens: int, minutes: float) -> bool:
    """Whether there is enough text, and the time to read it; a token costs 6 operations a weight."""
    if tokens < FEWEST_LSTM:
        return False
    config = lstm_config(host.device.type, tokens)
    first, others = config.embedding + config.hidden, (config.layers - 1) * 2 * config.hidden
    weights = len(host.tokens) * config.embedding + 4 * config.hidden * (first + others)
    return bool(60 * minutes * _for_device(SPEEDS, host) / (6 * weights) >= LSTM_READS)


def _for_device(table: Mapping[str, Any], host: Any) -> Any:
    return table["cpu" if host.device.type == "cpu" else "cuda"]


def choose_lm(
    lm: str,
    host: Any,
    text: DomainText,
    folder: Path,
    work: Path,
    minutes: float,
    options: LMOptions,
    say: Say,
) -> ChosenLM:
    """Trains what `plan` says, keeps what predicts held-out lines best, and writes it into the folder.

    Args:
        lm: One of KINDS.
        host: The model.
        text: The domain's text.
        folder: The domain folder.
        work: Where trainings keep their checkpoints; the next call with the same text and options goes on from there.
        minutes: For training.
        options: Order of the n-gram, style and seed.
        say: Called with one line for each thing done.
    """
    shares = plan(lm, host, text.tokens, minutes, options.style, say)
    if shares == (Share("ngram"),):
        return _ngram_alone(host, text, folder, options, say)
    train, held = hold_out(text.ids, _for_device(HELD, host), options.seed)
    _prepare(work, host, text, shares, options)
    say(f"LM: {', '.join(f'{s.kind} ({s.minutes:g} min)' if s.minutes else s.kind for s in shares)}")
    counted = Share("ngram") in shares
    ngrams = _NGrams(host, (train, text.ids) if counted else (), options)
    scorers: dict[str, TokenScorer] = {}
    files: dict[str, Path] = {}
    about: dict[str, Any] = {"held-out lines": len(held), "training": {}}
    for share in shares:
        if share.kind != "ngram":
            done = train_neural_lm(share.kind, host, train, held, work / share.kind, share.minutes, options.seed, say)
            scorers[share.kind], files[share.kind] = done.scorer, done.file
            about["training"][share.kind] = done.about
    if counted:
        scorers["ngram"], _ = ngrams[0]
    scores = {kind: token_scores(scorer, held) for kind, scorer in scorers.items()}
    if "decoder" in scorers:
        before = token_scores(decoder_lm(host), held)
        about["perplexity of the decoder before"] = _perplexity(before)
    weights, reached = smallest_mixture(scores)
    about["perplexity"] = {kind: _perplexity(s) for kind, s in scores.items()} | {"chosen": round(reached, 3)}
    about["weights"] = {kind: round(w, 4) for kind, w in weights.items()}
    say(
        "LM: perplexity per token on held-out lines: "
        + ", ".join(f"{k} {v:.2f}" for k, v in about["perplexity"].items())
    )
    if "ngram" in weights:
        full, made = ngrams[1]
        full.save(work / "ngram.safetensors")
        files["ngram"] = work / "ngram.safetensors"
        about |= made
    name = _keep(files, weights, folder)
    return ChosenLM(load_lm(folder / name, host), name, about)


class _NGrams:
    """The n-grams of several texts, each made when it is asked for.

    Where networks train on a GPU, those of much text are made in other processes at the same time.
    """

    def __init__(self, host: Any, texts: Sequence[Sequence[Sequence[int]]], options: LMOptions) -> None:
        self.host, self.texts, self.options = host, texts, options
        self._made: Future[list[TrainedNGram]] | None = None
        if host.device.type != "cpu" and sum(len(y) for text in texts[-1:] for y in text) >= MUCH:
            self._made = Future()
            Thread(target=self._make, args=(self._made,), daemon=True).start()

    def _make(self, made: Future[list[TrainedNGram]]) -> None:
        counter = NGramCounter(lm_tokens(self.host.tokens), self.options)
        lines = (flat(text, self.host.tokens) for text in self.texts)
        try:
            made.set_result(list(ordered_map(counter, lines, len(self.texts))))
        except BaseException as error:
            made.set_exception(error)

    def __getitem__(self, which: int) -> tuple[NGramScorer, dict[str, Any]]:
        if self._made is None:
            return train_ngram_lm(self.host, self.texts[which], self.options)
        return ngram_lm(self.host, self._made.result()[which], self.options)


def _ngram_alone(host: Any, text: DomainText, folder: Path, options: LMOptions, say: Say) -> ChosenLM:
    scorer, made = train_ngram_lm(host, text.ids, options)
    scorer.save(folder / LM)
    say(f"LM: {options.order}-gram over the model's tokens, {sum(made['n-grams']):,} n-grams")
    return ChosenLM(scorer, LM, {"weights": {"ngram": 1.0}, **made})


def hold_out(lines: Sequence[Sequence[int]], tokens: int, seed: int) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
    """Lines to train on, and a tenth of them, at most so many tokens but one line at least, that are held out."""
    if len(lines) < 2:
        raise BadInputError(
            f"a line must be held out, and the text has {len(lines)}: name more text, or take --lm ngram"
        )
    order = list(range(len(lines)))
    random.Random(seed).shuffle(order)
    held: list[int] = []
    count = 0
    for i in order[: max(1, len(lines) // 10)]:
        count += len(lines[i]) + 1
        if held and count > tokens:
            break
        held.append(i)
    out = set(held)
    return [y for i, y in enumerate(lines) if i not in out], [lines[i] for i in sorted(out)]


def smallest_mixture(scores: Mapping[str, Tensor], worth: float = WORTH) -> tuple[dict[str, float], float]:
    """The fewest LMs whose mixture has a perplexity at most `worth` above the best mixture's: weights, perplexity.

    Args:
        scores: log P of every held-out token under each LM (N,).
        worth: A share of the perplexity.
    """
    found: list[tuple[int, float, dict[str, float]]] = []
    for size in range(1, len(scores) + 1):
        for kinds in itertools.combinations(scores, size):
            weights, perplexity = best_weights(torch.stack([scores[kind] for kind in kinds]))
            found.append((size, perplexity, dict(zip(kinds, weights, strict=True))))
    best = min(perplexity for _, perplexity, _ in found)
    good = [f for f in found if f[1] <= best * (1 + worth)]
    _, reached, weights_by_kind = min(good, key=lambda f: f[:2])
    return weights_by_kind, reached


def work_folder(out: Path) -> Path:
    """Where the trainings for a domain folder keep their checkpoints: hidden, beside it, gone when it is written."""
    out = out.resolve()
    return out.parent / f".{out.name}.training"


def _prepare(work: Path, host: Any, text: DomainText, shares: Sequence[Share], options: LMOptions) -> None:
    """Keeps what an earlier run left if it was the same run; empties the folder otherwise."""
    digest = hashlib.sha256(repr((shares, options, host.kind)).encode())
    digest.update(fingerprint(host).numpy().tobytes() if hasattr(host, "language_parameters") else b"")
    for line in text.ids:
        digest.update(np.array([len(line), *line], dtype=np.int64).tobytes())
    mark = work / "run.txt"
    if not mark.is_file() or mark.read_text(encoding="utf-8") != digest.hexdigest():
        shutil.rmtree(work, ignore_errors=True)
        write_text(mark, digest.hexdigest())


def _keep(files: Mapping[str, Path], weights: Mapping[str, float], folder: Path) -> str:
    """Copies the chosen LMs into the folder, with a mixture file if there are several; the LM's name there."""
    if len(weights) == 1:
        (kind,) = weights
        shutil.copyfile(files[kind], folder / LM)
        return LM
    kept = []
    for number, kind in enumerate(weights):
        kept.append(folder / f"lm-{number}.safetensors")
        shutil.copyfile(files[kind], kept[-1])
    write_mixture(folder / MIXTURE, Mixture(tuple(kept), tuple(weights.values())))
    return MIXTURE


def _perplexity(scores: Tensor) -> float:
    return round(math.exp(-float(scores.mean())), 3)
