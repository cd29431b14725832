"""The stages `tokenizer`, `lm-source`, `lm-target`, `lm-mixed` and `ngrams`."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np

from ilme.data.tokenizer import SentencePieceTokenizer
from ilme.lm.ngram import NGramScorer, build_automaton
from ilme.lm.ngram_train import NGramOptions, train_ngram
from ilme.lm.perplexity import perplexity
from ilme.models.checkpoint import load_checkpoint, save_model
from ilme.study.config import NetworkPlan, StudyConfig
from ilme.study.runner import Stage, Study
from ilme.study.texts import count_words, read_lines
from ilme.study.training import Course, fresh_network, options_of, plan_inputs, run_course
from ilme.train.objectives import LmObjective
from ilme.train.options import LmOptions
from ilme.train.sources import TextSource

__all__ = ["CE", "LMS", "language_stages", "lm_names", "study_tokenizer", "transcripts"]

LMS = ("source", "target", "mixed")
CE = "-ce"  # the name of an LM, or of a setting, whose LMs are trained with cross-entropy whatever the plan's loss is
MEASURED = 400  # held-out sentences whose perplexity is given for each LM, n-gram and internal LM


def language_stages(config: StudyConfig) -> list[Stage]:
    read = ("text", "tokenizer")
    stages = [Stage("tokenizer", lambda study: _tokenizer(study, config), ("text",), {"vocabulary": config.vocabulary})]
    for name in lm_names(config):
        plan = config.lm if name.removesuffix(CE) in ("target", "mixed") else config.source_lm
        if name.endswith(CE):
            plan = replace(plan, loss={**plan.loss, "loss": "ce"})
        stages.append(
            Stage(
                f"lm-{name}",
                lambda study, name=name, plan=plan: _language_model(study, config, name, plan),  # type: ignore[misc]
                read,
                {"plan": plan_inputs(plan), "seed": config.seed},
                resumes=True,
            )
        )
    orders = {"source": config.source_order, "target": config.target_order}
    stages.append(Stage("ngrams", lambda study: _ngrams(study, orders), read, orders))
    return stages


def lm_names(config: StudyConfig) -> tuple[str, ...]:
    """The LMs of a study; one on recordings has none of both domains, but one for each further target domain."""
    if config.recordings.active:
        return ("source", *config.recordings.domains)
    wanted = {"cross-ce": ("source", "target"), "intra-ce": ("source", "mixed")}
    further = [f"{name}{CE}" for setting in config.decoding.settings for name in wanted.get(setting, ())]
    return (*LMS, *dict.fromkeys(further))


def transcripts(study: Study) -> list[str]:
    """The sentences of the training speech, each once: all the text that the E2E models ever see."""
    return read_lines(study.folder("text") / "transcripts.txt")


def study_tokenizer(study: Study) -> SentencePieceTokenizer:
    return SentencePieceTokenizer.load(study.folder("tokenizer") / "bpe.model")


def _tokenizer(study: Study, config: StudyConfig) -> dict[str, Any]:
    tokenizer = SentencePieceTokenizer.train(transcripts(study), config.vocabulary)
    tokenizer.save(study.folder("tokenizer") / "bpe.model")
    return {"pieces": len(tokenizer)}


def _training_text(study: Study, name: str) -> tuple[list[str], list[str]]:
    """Training and held-out sentences of an LM; `source` sees exactly the transcripts, `mixed` both domains."""
    text, name = study.folder("text"), name.removesuffix(CE)
    source = (transcripts(study), read_lines(text / "source-held-out.txt"))
    if name == "source":
        return source
    if name not in LMS:  # a further target domain
        return read_lines(text / f"{name}-train.txt"), read_lines(text / f"{name}-held-out.txt")
    target = (read_lines(text / "target-train.txt"), read_lines(text / "target-held-out.txt"))
    if name == "mixed":
        # All source text there is, spoken or not: this is the larger LM of the intra-domain tables.
        return read_lines(text / "source-train.txt") + target[0], source[1] + target[1]
    return target


def _language_model(study: Study, config: StudyConfig, name: str, plan: NetworkPlan) -> dict[str, Any]:
    tokenizer = study_tokenizer(study).for_role("lm")
    train, held_out = _training_text(study, name)
    ids, kept_back = tokenizer.encode_many(train), tokenizer.encode_many(held_out)
    stage = f"lm-{name}"
    file = study.folder(stage) / "model.safetensors"
    options = options_of(LmOptions, plan.loss, "loss")
    counts = np.bincount(np.fromiter(chain.from_iterable(ids), dtype=np.int64), minlength=len(tokenizer))

    def objective() -> LmObjective:
        import torch

        network = fresh_network("lm", plan, tokenizer.tokens, config.seed)
        made = LmObjective(network, options, torch.from_numpy(counts))
        if not plan.starts_from:
            made.begin()
        return made

    course = Course(
        plan=plan,
        objective=objective,
        source=lambda: TextSource(ids, tokens=int(plan.batch), seed=config.seed),
        held_out=lambda: TextSource(kept_back, tokens=int(plan.batch), shuffle=False),
        export=lambda model: save_model(file, model, tokenizer),
        perplexity=None,
        seed=config.seed,
    )
    facts = run_course(study, stage, course)
    model = load_checkpoint(file, expect="lm", device=study.device).model
    return facts | {"words": count_words(train)} | _perplexities(study, model)


def _perplexities(study: Study, scorer: Any) -> dict[str, float]:
    """Perplexity per token and per word on held-out text of every domain."""
    tokenizer = study_tokenizer(study)
    found: dict[str, float] = {}
    for file in sorted(study.folder("text").glob("*-held-out.txt")):
        domain = file.name.removesuffix("-held-out.txt")
        sentences = read_lines(file)[:MEASURED]
        measured = perplexity(scorer, sentences, tokenizer)
        found[f"{domain}_ppl_token"] = round(measured.per_token, 3)
        found[f"{domain}_ppl_word"] = round(measured.per_word, 2)
    return found


def _ngrams(study: Study, orders: dict[str, int]) -> dict[str, Any]:
    """source.safetensors, which LODR subtracts, and target.safetensors."""
    tokenizer = study_tokenizer(study).for_role("lm")
    facts: dict[str, Any] = {}
    for name, order in orders.items():
        train, _ = _training_text(study, name)
        ids = chain.from_iterable((*row, tokenizer.tokens.eos or 0) for row in tokenizer.encode_many(train))
        prune = (0,) if order < 3 else (0, 0, 1)
        trained = train_ngram(np.fromiter(ids, dtype=np.int64), tokenizer.tokens, NGramOptions(order, prune))
        arpa = trained.arpa
        scorer = NGramScorer(build_automaton(arpa), tokenizer.tokens, arpa.missing, arpa.unknown)
        scorer.save(study.folder("ngrams") / f"{name}.safetensors")
        facts[name] = {"order": order, "kept": list(trained.kept), **_perplexities(study, scorer)}
    return facts
