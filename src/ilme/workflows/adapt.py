"""Adapts a model to a domain, from text alone.

    text in the model's own style → LM over its tokens → dev decoded once → every internal LM scores the n-best lists
      → the best of them, and the weights, are tuned in the search → dev decoded once more → a domain folder

Nothing is made worse in silence: where dev makes more errors with the weights than without an LM, the card says so; a
dev set that is large enough makes such weights zero. The folder appears when all of it is there; one that was there
before is replaced as a whole.
"""

from __future__ import annotations

import math
import random
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ilme import __version__
from ilme.data.text import evaluation_texts
from ilme.data.utterances import Utterance
from ilme.errors import BadInputError, UsageError
from ilme.ilm import internal_lm
from ilme.ilm.files import save_internal_lm
from ilme.lm.phrase_list import Phrase, PhraseLike, as_phrases, read_phrases, write_phrases
from ilme.protocols import TokenScorer
from ilme.recogniser.domain import CARD, INTERNAL_LM, LM, PHRASES, Domain
from ilme.recogniser.loading import load_lm, load_model
from ilme.recogniser.options import default_options, safe_boost
from ilme.recogniser.packing import pack_networks
from ilme.runtime.files import replace_folder, write_text
from ilme.runtime.formats import Format
from ilme.runtime.locks import only_run
from ilme.tuning.temperature import USUAL
from ilme.workflows.card import card_text
from ilme.workflows.decoding import read_set
from ilme.workflows.domain_lm import LMOptions, keep_lm, read_domain_text, train_ngram_lm
from ilme.workflows.lm_choice import KINDS, choose_lm, work_folder
from ilme.workflows.options import AdaptOptions, Style
from ilme.workflows.safe_weights import SAFE_DOMAINS, is_measured, safe_choice
from ilme.workflows.spoken_dev import SPEAK, check_voices, hold_out_spoken, speak_lines
from ilme.workflows.with_dev import Adapted, choose_on_dev

__all__ = ["AdaptOptions", "Adapted", "adapt", "safe_choice"]

RANKS = "ranks.tiktoken"
OURS = (CARD, LM, INTERNAL_LM, PHRASES, RANKS, "card.md", "tuning.json")
KEPT = re.compile(r"lm(-\d+)?(\.[\w.]+)?")  # an LM that was given by name
Say = Callable[[str], None]


def adapt(
    model: str | Path,
    text: Sequence[str],
    out: str | Path,
    *,
    dev: str | Path | Sequence[Utterance] = (),
    split: str = "",
    limit: int = 300,
    lm: str = "auto",
    minutes: float = 0.0,
    phrases: str | Path | Sequence[PhraseLike] = (),
    device: str = "cpu",
    format: Format = "float32",
    model_options: Mapping[str, Any] | None = None,
    options: AdaptOptions | None = None,
    host: Any = None,
    say: Say = lambda line: None,
) -> Adapted:
    """Adapts a model and writes the domain folder.

    Args:
        model: As `ilme.load_model` takes it; the folder names it.
        text: Text files or globs of the domain.
        out: The folder to write; one that `ilme adapt` wrote before is replaced.
        dev: Transcribed speech of the domain; without it, weights of other domains are used, untested. The word `speak`
            has held-out lines of the text spoken by synthetic voices.
        split: Only dev utterances whose split is this.
        limit: At most this many dev utterances, drawn at random; 0 takes all.
        lm: The LM that is trained on `text`: `ngram`, `lstm`, `decoder` (the model's own), or `auto`, which trains what
            `minutes` allow and keeps what predicts held-out lines best. Or the name of one that is there, as `load_lm`
            takes it, in place of all that; over folded tokens if the style is fold.
        minutes: For training neural LMs; 0 trains the n-gram alone, or for 5 minutes a network that `lm` names. A run
            that was killed goes on where it was when it is started again.
        phrases: Names and terms that may be said: a file, or a list; the folder keeps them.
        device: Where everything runs.
        format: Format of the weights on a CPU.
        model_options: What the model's own kind takes, such as a language.
        options: How.
        host: The model, if it is loaded already.
        say: Called with one line for each thing done.
    """
    began = time.perf_counter()
    options, out = options or AdaptOptions(), Path(out)
    named = "" if lm in KINDS else lm
    _check_given(text, named, minutes)
    _check_replaceable(out)
    listed = _listed(phrases)
    speaks = isinstance(dev, str) and dev == SPEAK
    natural = _check_speaking(named, model_options or {}) if speaks else 0.0
    utterances = _drawn([] if speaks else read_set(dev, split), limit, options.seed)
    host = host or load_model(model, device, **(model_options or {}))
    scorer = load_lm(named, host) if named else None
    _pack(host, scorer, format)
    _check_internal(host, options.internal, speaks or bool(utterances))
    style = style_for(host, options.style)
    with only_run(out), replace_folder(out) as folder:
        report: dict[str, Any] = {"ilme": _version(), "seed": options.seed}
        if scorer is None:
            spoken = [u.text for u in utterances] + evaluation_texts(options.exclude, _unreadable)
            lm_options = LMOptions(style, options.order, options.prune, options.overlap, options.seed, options.joined)
            whole = read = read_domain_text(host, text, spoken, lm_options, say)
            if speaks:
                lines, read = hold_out_spoken(whole, options.spoken_lines, options.overlap, options.seed)
            chosen = choose_lm(lm, host, read, folder, work_folder(out), minutes, lm_options, say)
            scorer, report["text"], report["lm"] = chosen.scorer, whole.about, chosen.about
            if speaks:
                utterances = speak_lines(lines, work_folder(out), natural, options.seed)
                report["spoken dev"] = _told_of_voices(utterances, natural, len(whole.lines) - len(read.lines), say)
            _pack(host, scorer, format)
        kept = _kept_options(model_options or {}, folder)
        name = keep_lm(named, folder) if named else chosen.name
        search = default_options(host, options.beam)
        domain = Domain(_lasting(model), kept, host.kind, search=search, lm=name, style=style)
        if utterances:
            found = choose_on_dev(host, domain, scorer, utterances, listed, options, say)
        else:
            found = _without_dev(host, domain, listed, options, say)
        if speaks and chosen.kinds == ("ngram",):  # what was kept out for dev is the domain's text too
            train_ngram_lm(host, whole.ids, lm_options)[0].save(folder / LM)
        report |= found.domain.report | {"seconds": round(time.perf_counter() - began, 1)}
        written = _written(found, report, listed, folder, out.name)
    shutil.rmtree(work_folder(out), ignore_errors=True)
    return written


def style_for(host: Any, style: Style) -> Style:
    """`auto` is what the model writes: with case, or words as they are said."""
    if style != "auto":
        return style
    letters = [c for piece in host.tokens.pieces if not piece.startswith("<") for c in piece if c.isalpha()]
    return "restore" if any(c.isupper() for c in letters) and any(c.islower() for c in letters) else "spoken"


def _listed(phrases: str | Path | Sequence[PhraseLike]) -> tuple[Phrase, ...]:
    """The phrases of a file, or those that are given."""
    if isinstance(phrases, str | Path):
        return read_phrases(phrases) if phrases else ()
    return as_phrases(phrases)


def _pack(host: Any, scorer: TokenScorer | None, format: Format) -> None:
    if host.device.type == "cpu":
        pack_networks(host, (scorer,), format)


def _check_given(text: Sequence[str], named: str, minutes: float) -> None:
    if not text and not named:
        raise BadInputError("no text was given: adaptation needs text of the domain, or an LM made from it")
    if not 0 <= minutes < math.inf:
        raise UsageError(f"minutes must be a number of at least 0, got {minutes}")
    if minutes and named:
        raise UsageError(f"minutes are for an LM that is trained, and {named} is there already: leave them out")


def _check_replaceable(out: Path) -> None:
    """A folder is replaced only if it is a domain folder and holds nothing else."""
    if not out.exists():
        return
    if not out.is_dir():
        raise BadInputError(f"{out} is a file; name a folder with --out")
    foreign = sorted(p.name for p in out.iterdir() if p.name not in OURS and not KEPT.fullmatch(p.name))
    if foreign:
        raise BadInputError(f"{out} holds {foreign[0]}, which no domain folder has: choose another folder with --out")


def _check_internal(host: Any, name: str, has_dev: bool) -> None:
    if getattr(host, "detects_language", False):
        raise BadInputError("text is of one language, and so is an internal LM: name it in place of auto, such as de")
    known = internal_lm.available(host)
    if name != "auto" and name not in known:
        raise BadInputError(f"internal is auto or one of {', '.join(known)}, not {name!r}")
    if name != "auto" and not has_dev and internal_lm.needs(host, name) != "nothing":
        free = [n for n in known if internal_lm.needs(host, n) == "nothing"]
        raise BadInputError(f"the internal LM {name!r} needs speech: give --dev, or choose {', '.join(free)}")


def _unreadable(name: str, reason: str) -> None:
    """A test set that cannot be kept out is an error: its results would be worth nothing."""
    raise BadInputError(f"options.exclude: {name}: {reason}")


def _check_speaking(named: str, model_options: Mapping[str, Any]) -> float:
    """Refuses what cannot be spoken, before the work begins; the neural voice's share of the lines."""
    if named:
        raise BadInputError(
            f"--dev speak keeps the lines that are spoken out of the LM, and {named} may have read them: let the LM be "
            f"trained here (--lm {', '.join(KINDS)}), or give transcribed speech"
        )
    return check_voices(str(model_options.get("language", "")))


def _told_of_voices(utterances: Sequence[Utterance], natural: float, out: int, say: Say) -> dict[str, Any]:
    """What was spoken for dev, for the card."""
    voice, seconds = "a neural voice" if natural else "espeak-ng", sum(u.seconds for u in utterances)
    say(f"dev: {len(utterances)} lines of the text, {seconds:.0f} s, are spoken by {voice}; the LM does not read {out}")
    return {"lines": len(utterances), "voice": voice, "seconds": round(seconds, 1), "kept out": out}


def _drawn(utterances: list[Utterance], limit: int, seed: int) -> list[Utterance]:
    if limit < 0:
        raise UsageError(f"limit must not be negative, got {limit}; 0 takes all")
    if not limit or len(utterances) <= limit:
        return utterances
    chosen = random.Random(seed).sample(range(len(utterances)), limit)
    return [utterances[i] for i in sorted(chosen)]


def _lasting(name: str | Path) -> str:
    """A name that means the same from every folder: a path in full, a hub id as it is.

    Links are not followed: what a model needs beside it stands beside the link.
    """
    return str(Path(name).absolute()) if Path(name).exists() else str(name)


def _kept_options(options: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The model's own options; a file among them is copied into the folder."""
    kept = dict(options)
    if kept.get("ranks"):
        shutil.copyfile(kept["ranks"], folder / RANKS)
        kept["ranks"] = RANKS
    return kept


def _written(found: Adapted, report: dict[str, Any], listed: Sequence[Phrase], folder: Path, name: str) -> Adapted:
    """Puts what was found into the folder, the card last."""
    found = replace(found, domain=replace(found.domain, report=report))
    if listed:
        write_phrases(folder / PHRASES, listed)
    if found.internal is not None:
        save_internal_lm(folder / INTERNAL_LM, found.internal)
    if found.tuning is not None:
        found.tuning.save(folder / "tuning.json")
    write_text(folder / "card.md", card_text(found, name))
    return replace(found, domain=found.domain.save(folder))


def _without_dev(host: Any, domain: Domain, phrases: Sequence[Phrase], options: AdaptOptions, say: Say) -> Adapted:
    name, weights = safe_choice(host)
    weights = replace(weights, phrases=safe_boost(host) if phrases else 0.0)
    name = name if options.internal == "auto" else options.internal
    joined = is_measured(host) and options.decoding in ("auto", "joined")
    search = domain.search or default_options(host, options.beam)
    if joined:
        search = replace(search, consensus=USUAL, joined=True)
    where = f"weights learned on {SAFE_DOMAINS}" if is_measured(host) else "cautious weights"
    both = ", and the plain model has its say in each answer" if joined else ""
    note = (
        f"no dev speech: {where} are used (λ_T {weights.lm}, μ {weights.subtracted}, β {weights.length}, internal LM "
        f"{name}){both}; whether they help this domain has not been measured"
    )
    say(note)
    found = replace(domain, weights=weights, internal=name, search=search, report={"note": note})
    return Adapted(found, internal=internal_lm(host, name))


def _version() -> str:
    return f"{__version__}, torch {torch.__version__}"
