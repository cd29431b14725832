"""The stage `text`: which sentences are spoken, which train language models, which are kept back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import IO, Any

from ilme.data.exclude import Exclusion
from ilme.data.normalise import spoken
from ilme.data.textfiles import OPENERS
from ilme.errors import BadInputError
from ilme.runtime.files import write_text
from ilme.study.config import PARTS, DomainPlan, StudyConfig
from ilme.study.runner import Stage, Study, file_digest, used_fields

__all__ = ["count_words", "domain_file", "read_lines", "speakable", "text_stage", "write_lines"]

LATER = ("train_longest",)  # fields that older studies had not
WORDS_A_MINUTE = 165  # of the voices on average; decides how many sentences make an hour


def text_stage(config: StudyConfig) -> Stage:
    """Writes source-train, source-held-out, target-train, target-held-out, and dev and test of both domains (.txt);
    spoken.txt, the sentences of the training speech in their order, and transcripts.txt, each of them once.
    """
    plan = config.text
    digests = {
        f"{domain}-{part}": file_digest(domain_file(where, part))
        for domain, where in (("source", plan.source), ("target", plan.target))
        for part in PARTS
    }
    for domain, where in (("source", plan.source), ("target", plan.target)):
        for other in _added(where):
            digests[f"{domain}-train, {other.name}"] = file_digest(domain_file(other, "train"))
    inputs = {
        "files": digests,
        "plan": {k: v for k, v in used_fields(plan, LATER).items() if k not in ("source", "target")},
        "sets": [config.speech.dev, config.speech.test],
        "spoken": [config.speech.hours, config.speech.passes, *([config.speech.rare] if config.speech.rare else [])],
        "seed": config.seed,
    }
    return Stage("text", lambda study: _choose(study, config), inputs=inputs)


def _added(where: DomainPlan) -> list[DomainPlan]:
    """The domains whose training text is added."""
    return [replace(where, name=name, also=()) for name in where.also]


def domain_file(where: DomainPlan, part: str) -> Path:
    """The text file of one part of a domain, compressed or not."""
    folder = Path(where.folder.format(name=where.name))
    found = [p for p in (folder / f"{part}.txt{end}" for end in ("", *OPENERS)) if p.is_file()]
    if not found:
        raise BadInputError(
            f"{folder} has no {part}.txt; make the domain with: ilme data domains {where.name} {folder.parent}"
        )
    return found[0]


def read_lines(path: Path) -> list[str]:
    """The lines of a text file that are not blank."""
    opener: Any = OPENERS.get(path.suffix, open)
    stream: IO[str]
    with opener(path, "rt", encoding="utf-8") as stream:
        return [line.strip() for line in stream if line.strip()]


def write_lines(path: Path, lines: Sequence[str]) -> None:
    write_text(path, "".join(f"{line}\n" for line in lines))


def count_words(texts: Sequence[str]) -> int:
    return sum(len(text.split()) for text in texts)


def _choose(study: Study, config: StudyConfig) -> dict[str, Any]:
    """Evaluation sentences first; training text then loses every sentence that shares 8 words in a row with them."""
    plan, speech = config.text, config.speech
    folder = study.folder("text")
    evaluation: list[str] = []
    for domain, where in (("source", plan.source), ("target", plan.target)):
        for part, count in (("dev", speech.dev), ("test", speech.test)):
            sentences = speakable(_sentences(where, part), config)
            if len(sentences) < count:
                raise BadInputError(
                    f"{part} of {where.name} has {len(sentences)} sentences of {plan.shortest} to {plan.longest} "
                    f"words; {count} are wanted: lower speech.{part}"
                )
            chosen = _sample(sentences, count, f"{config.seed}/{domain}/{part}")
            write_lines(folder / f"{domain}-{part}.txt", chosen)
            evaluation += chosen
    exclusion, exact = Exclusion.from_texts(evaluation), set(evaluation)
    facts: dict[str, Any] = {}
    for domain, where in (("source", plan.source), ("target", plan.target)):
        found = [s for own in (where, *_added(where)) for s in _sentences(own, "train")]
        shared = exclusion.overlaps(found, are_spoken=True)
        kept = [s for s, overlap in zip(found, shared, strict=True) if overlap is None and s not in exact]
        kept = list(dict.fromkeys(kept))
        Random(f"{config.seed}/{domain}/train").shuffle(kept)
        held_out, train = kept[: plan.held_out], kept[plan.held_out :]
        if plan.lm_sentences:
            train = train[: plan.lm_sentences]
        if not train:
            raise BadInputError(
                f"{where.name} has no training text left beside {plan.held_out} sentences held out; lower text.held_out"
            )
        write_lines(folder / f"{domain}-held-out.txt", held_out)
        write_lines(folder / f"{domain}-train.txt", train)
        facts[f"{domain}_words"] = count_words(train)
        facts[f"{domain}_excluded"] = len(found) - len(kept)
    said = _training_sentences(read_lines(folder / "source-train.txt"), config)
    write_lines(folder / "spoken.txt", said)
    write_lines(folder / "transcripts.txt", list(dict.fromkeys(said)))
    return facts


def _training_sentences(sentences: Sequence[str], config: StudyConfig) -> list[str]:
    """Sentences in a drawn order, again from the start for each pass, until they fill the hours."""
    wanted = config.speech.hours * 60 * WORDS_A_MINUTE
    longest = config.text.train_longest or config.text.longest
    fitting = speakable(sentences, config, longest)
    if not fitting:
        raise BadInputError(
            f"no training sentence has {config.text.shortest} to {longest} words; change text.longest or train_longest"
        )
    chosen: list[str] = []
    words = 0
    for turn in range(config.speech.passes):
        order = Random(f"{config.seed}/pass/{turn}").sample(fitting, len(fitting))
        if config.speech.rare:
            order = _rare_first(order, config.speech.rare)
        for sentence in order:
            if words >= wanted:
                return chosen
            chosen.append(sentence)
            words += len(sentence.split())
    return chosen


def _rare_first(sentences: Sequence[str], enough: int) -> list[str]:
    """Those with a word that fewer than `enough` of the chosen before them have, then the others."""
    counts: Counter[str] = Counter()
    first, rest = [], []
    for sentence in sentences:
        words = set(sentence.split())
        if any(counts[word] < enough for word in words):
            first.append(sentence)
            counts.update(words)
        else:
            rest.append(sentence)
    return first + rest


def _sentences(where: DomainPlan, part: str) -> list[str]:
    return [s for s in (spoken(line) for line in read_lines(domain_file(where, part))) if s]


def speakable(sentences: Sequence[str], config: StudyConfig, longest: int = 0) -> list[str]:
    """Different sentences of a length that is spoken, in their order; `longest` in place of the plan's, if given."""
    plan = config.text
    return [s for s in dict.fromkeys(sentences) if plan.shortest <= len(s.split()) <= (longest or plan.longest)]


def _sample(sentences: Sequence[str], count: int, seed: str) -> list[str]:
    """`count` sentences, in their order."""
    places = sorted(Random(seed).sample(range(len(sentences)), count))
    return [sentences[i] for i in places]
