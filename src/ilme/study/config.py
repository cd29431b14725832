"""What a study is made of, as one YAML file.

text → speech, sets → tokenizer → lm-* and ngrams → rnnt, aed → tune and test of each model in each setting → tables
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import yaml

from ilme.errors import BadInputError
from ilme.runtime.configs import config_from_json, config_to_json, overlaid
from ilme.search.length import LABELS_PER_SECOND
from ilme.study.corpora import RecordingsPlan

__all__ = [
    "DecodingPlan",
    "DomainPlan",
    "NetworkPlan",
    "SpeechPlan",
    "StudyConfig",
    "SystemPlan",
    "TextPlan",
    "read_config",
]

DOMAINS = ("source", "target")
PARTS = ("train", "dev", "test")
METHODS = ("BS", "SF", "DR", "LODR", "ILME")  # the default
ALL_METHODS = (*METHODS, "ILME-learned")
SETTINGS = ("cross", "intra", "calls", "cross-ce", "intra-ce")


@dataclass(frozen=True)
class DomainPlan:
    """Where the text of one domain comes from.

    Attributes:
        name: Its name in tables; also the name for `ilme data domains`.
        folder: Folder with train.txt, dev.txt and test.txt (or the same with .xz or .gz), one sentence to a line,
            whole works apart. `{name}` stands for the name. A relative folder is looked for where the study starts.
        also: Names of further domains, in folders of the same pattern, whose training text is added; dev and test stay.
    """

    name: str
    folder: str = ""
    also: tuple[str, ...] = ()


@dataclass(frozen=True)
class TextPlan:
    """The text of both domains, and how much of it is used.

    Attributes:
        source: The domain that is spoken for training.
        target: The domain of which there is text alone.
        shortest: Fewest words of a sentence that is spoken.
        longest: Most words of a sentence that is spoken.
        train_longest: The same for training speech, where it is more; 0: `longest`. Dev and test stay as they are.
        lm_sentences: Most sentences of each domain's training text that an LM sees; 0 takes all.
        held_out: Sentences of the training text kept back, to stop LMs early and to measure internal LMs on.
    """

    source: DomainPlan
    target: DomainPlan
    shortest: int = 4
    longest: int = 28
    train_longest: int = 0
    lm_sentences: int = 0
    held_out: int = 1000


@dataclass(frozen=True)
class SpeechPlan:
    """The speech made of that text.

    Attributes:
        hours: Source speech for training, about; sentences are spoken in turn until it is reached.
        passes: Most times that one sentence is spoken, each time by another voice.
        rare: First come sentences with a word that fewer than so many of those before have: where not all text can be
            spoken, as many words as possible are.
        held_out: Utterances of the training domain kept back to watch the loss.
        dev: Utterances of each domain's dev set.
        test: Utterances of each domain's test set.
        voices: How many voice variants speak the training speech, dev and test.
        unheard: How many of these voices speak dev and test alone, about half each, so that no voice of test was heard
            in training; 0: every voice speaks everywhere.
        natural: Share of the training utterances that a neural voice speaks instead (extra `natural`).
        train_snr: Lowest and highest signal-to-noise ratio in training, in decibels.
        test_snr: The same in dev and test.
        talkers: Voices that babble in the background.
        workers: Processes that speak; 0 takes one for each core.
    """

    hours: float = 80.0
    passes: int = 3
    rare: int = 0
    held_out: int = 400
    dev: int = 400
    test: int = 1000
    voices: int = 78
    unheard: int = 0
    natural: float = 0.0
    train_snr: tuple[float, float] = (0.0, 15.0)
    test_snr: tuple[float, float] = (2.0, 8.0)
    talkers: int = 3
    workers: int = 0


@dataclass(frozen=True)
class NetworkPlan:
    """One network and its training.

    Attributes:
        preset: Size to start from: `paper`, `small` or `tiny`.
        network: Fields of the network's config that differ from the preset.
        batch: Seconds of audio in a batch, or tokens of text.
        loop: Fields of LoopOptions. With `minutes` and no `steps` the network gets so much time.
        optimiser: Fields of OptimiserOptions.
        loss: Fields of RnntOptions, AedOptions or LmOptions.
        easy_first: The first epoch goes from short utterances to long ones, and without noise: in that order a deep
            network soon hears where the labels are.
        masks: Fields of SpecAugment; null leaves the features as they are.
        encoder_from: The other network (`rnnt` or `aed`), trained first, whose encoder this one's starts from.
        starts_from: A model of an earlier run to start from; one of another kind gives its encoder.
    """

    preset: Literal["paper", "small", "tiny"] = "small"
    network: dict[str, Any] = field(default_factory=dict)
    batch: float = 800.0
    loop: dict[str, Any] = field(default_factory=dict)
    optimiser: dict[str, Any] = field(default_factory=dict)
    loss: dict[str, Any] = field(default_factory=dict)
    easy_first: bool = False
    masks: dict[str, Any] | None = None
    encoder_from: Literal["", "rnnt", "aed"] = ""
    starts_from: str = ""


@dataclass(frozen=True)
class SystemPlan:
    """A further network: trained as the study's RNN-T or AED is, but for what is given here.

    Attributes:
        name: Its name in tables; with the model in small letters, such as `aed-cold`, its stage.
        model: The network whose plan it has.
        methods: How it recognises, each tuned as for the others; `BS` is the network alone.
        network: Fields of the network's config that differ from the model's plan.
        loop: The same of its loop.
        optimiser: The same of its optimiser.
        loss: The same of its loss.
        fusion: How an LM takes part inside the decoder.
        lm: Which LM that is in training: `source` (of the transcripts), `target`, or `mixed` (of both domains).
        replaced: When it recognises, the LM of the setting stands in the place of that LM.
        from_trained: It starts from the study's trained model of its kind, all but the CTC layer.
    """

    name: str
    model: Literal["rnnt", "aed"] = "aed"
    methods: tuple[str, ...] = ("BS",)
    network: dict[str, Any] = field(default_factory=dict)
    loop: dict[str, Any] = field(default_factory=dict)
    optimiser: dict[str, Any] = field(default_factory=dict)
    loss: dict[str, Any] = field(default_factory=dict)
    fusion: Literal["none", "deep", "cold", "component", "simple"] = "none"
    lm: Literal["", "source", "target", "mixed"] = ""
    replaced: bool = False
    from_trained: bool = False

    def __post_init__(self) -> None:
        if odd := sorted(set(self.methods) - set(ALL_METHODS)):
            raise BadInputError(f"methods of {self.name} have {odd[0]!r}; there are {', '.join(ALL_METHODS)}")
        if (self.fusion == "none") != (not self.lm) or (self.replaced and not self.lm):
            raise BadInputError(f"{self.name}: fusion says how an LM takes part and lm which one: give both, or none")
        if self.lm and self.model != "aed":
            raise BadInputError(f"{self.name}: an LM inside is for model: aed, not for {self.model}")

    @property
    def stage(self) -> str:
        return f"{self.model}-{self.name.lower()}"

    @property
    def head(self) -> Literal["", "ctc"]:
        """What recognises in place of the network's own decoder: the CTC layer, where nothing else is trained."""
        return "ctc" if self.loss.get("ctc_only") else ""


@dataclass(frozen=True)
class DecodingPlan:
    """Tuning and testing. Every method has the same effort, beam and length treatment, the baseline included.

    Attributes:
        methods: In the order of the tables. `ILME-learned` subtracts an internal LM that is learned from the source
            transcripts.
        models: Which models are compared.
        settings: `cross` (target dev and test, target LM), `intra` (source dev and test, LM of both domains), and
            `calls`, a second target domain of recordings. `cross-ce` and `intra-ce` are the first two with LMs that
            are trained with cross-entropy, beside those of a plan whose `lm.loss` is noise-contrastive.
        beam: Beam of dev and test in the tables.
        tuning_beam: Of the decodes that look for weights; 0: that of the tables. A narrower one is faster, and the
            test stage says where its weights are not good at the tables' beam.
        background: Values of ε, the share of the background in what is subtracted, of which dev chooses one with the
            weights; the same for every method that subtracts.
        nbest: Hypotheses of each utterance that are kept.
        decodes: Decodes of dev that each method may spend.
        lm: Range of λ_T.
        subtracted: Range of μ.
        rnnt_length: Range of β, the reward for each label of the RNN-T.
        aed_length: Range of β for the AED.
        aed_normalisation: α: the AED's hypotheses are ranked by score / (|y| + 1)^α.
        max_symbols: Most labels of the RNN-T at one frame.
        max_length: Most labels of the AED.
        labels_per_second: Most labels for a second of audio, and a few to spare, for both models.
        max_repeats: Most repetitions in a row of a run of labels, for the AED.
        aed_look_back: Most frames of the encoder that the AED's attention may go back; 0 does not limit it.
        aed_enough: Ended hypotheses with which the AED's search is over, at most `nbest` and the beam; 0 does not count
            them. Give it and `nbest` the beam of the tables: fewer end a wide search too early.
        batch: Utterances searched at once.
        replicates: Bootstrap replicates of the weights' stability.
        details: Utterances of each system that are explained label by label.
    """

    methods: tuple[str, ...] = METHODS
    models: tuple[str, ...] = ("rnnt", "aed")
    settings: tuple[str, ...] = ("cross", "intra")
    beam: int = 25
    tuning_beam: int = 0
    background: tuple[float, ...] = (0.0,)
    nbest: int = 10
    decodes: int = 5
    lm: tuple[float, float] = (0.0, 1.0)
    subtracted: tuple[float, float] = (0.0, 1.0)
    rnnt_length: tuple[float, float] = (0.0, 1.5)
    aed_length: tuple[float, float] = (0.0, 0.0)
    aed_normalisation: float = 1.0
    max_symbols: int = 3
    max_length: int = 120
    labels_per_second: float = LABELS_PER_SECOND
    max_repeats: int = 4
    aed_look_back: int = 0
    aed_enough: int = 0
    batch: int = 128
    replicates: int = 30
    details: int = 8

    def __post_init__(self) -> None:
        for name, known in (("methods", ALL_METHODS), ("models", ("rnnt", "aed")), ("settings", SETTINGS)):
            odd = sorted(set(getattr(self, name)) - set(known))
            if odd:
                raise BadInputError(f"decoding.{name} has {odd[0]!r}; there are {', '.join(known)}")
        if "BS" not in self.methods:
            raise BadInputError("decoding.methods needs BS: every gain is measured against it")


@dataclass(frozen=True)
class StudyConfig:
    """A whole study.

    Attributes:
        name: Its name in tables and files.
        text: The domains.
        speech: What is spoken.
        recordings: Recorded speech to use instead; the default is none.
        vocabulary: Output units of every model, <b> or <eos> included; trained on the source transcripts alone.
        rnnt: The transducer.
        aed: The attention encoder-decoder.
        lm: The LSTM-LM of the target domain; the one of both domains (intra-domain tables) has its shape too.
        source_lm: The LSTM-LM of the source transcripts, subtracted by Density Ratio.
        target_order: Order of the target n-gram model whose perplexity is given beside the LSTM-LM's.
        source_order: Order of the source n-gram model that LODR subtracts.
        decoding: Tuning and testing.
        systems: Further networks that are compared with these.
        seed: Seed of everything that is drawn.
    """

    name: str
    text: TextPlan
    speech: SpeechPlan = field(default_factory=SpeechPlan)
    vocabulary: int = 1000
    rnnt: NetworkPlan = field(default_factory=NetworkPlan)
    aed: NetworkPlan = field(default_factory=NetworkPlan)
    lm: NetworkPlan = field(default_factory=NetworkPlan)
    source_lm: NetworkPlan = field(default_factory=NetworkPlan)
    target_order: int = 4
    source_order: int = 2
    decoding: DecodingPlan = field(default_factory=DecodingPlan)
    seed: int = 1
    recordings: RecordingsPlan = field(default_factory=RecordingsPlan)
    systems: tuple[SystemPlan, ...] = ()

    @property
    def networks(self) -> tuple[str, ...]:
        """The stages of all networks that recognise."""
        return (*self.decoding.models, *(system.stage for system in self.systems))

    def system(self, network: str) -> SystemPlan:
        """What a network is beside the study's RNN-T or AED; of these two themselves, nothing more."""
        plain = SystemPlan(network, "rnnt" if network == "rnnt" else "aed", self.decoding.methods)
        return next((system for system in self.systems if system.stage == network), plain)

    def to_json(self) -> dict[str, Any]:
        return config_to_json(self)


def read_config(path: Path, changes: dict[str, Any] | None = None) -> StudyConfig:
    """The study of a YAML file, with single values changed: {"speech.hours": 2} sets one field.

    A plan that `extends` another names the file, beside its own, and has only what differs: mappings are merged field
    by field, and a field that is null is taken away.
    """
    data = _read_plan(path, ())
    for name, value in (changes or {}).items():
        _set(data, name, value)
    data.setdefault("name", path.stem)
    try:
        return config_from_json(StudyConfig, data)
    except TypeError as error:
        raise BadInputError(f"{path} is not a whole study: {error}") from error


def _read_plan(path: Path, above: tuple[Path, ...]) -> dict[str, Any]:
    """The fields of a plan and of those that it extends; `above` are the plans that lead to it."""
    if not path.is_file():
        wanted = f", which {above[-1]} extends" if above else ""
        raise BadInputError(f"there is no study {path}{wanted}; the repository has configs/study/tiny.yaml and others")
    if path.resolve() in [file.resolve() for file in above]:
        raise BadInputError(f"{above[-1]} extends {path.name}, and that leads back to it: one of them must stand alone")
    try:
        data = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise BadInputError(f"{path} is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise BadInputError(f"{path} is not a study: expected fields such as name, text and speech")
    other = data.pop("extends", None)
    if other is None:
        return data
    return _without_nulls(overlaid(_read_plan(path.parent / str(other), (*above, path)), data))


def _without_nulls(data: dict[str, Any]) -> dict[str, Any]:
    return {k: _without_nulls(v) if isinstance(v, dict) else v for k, v in data.items() if v is not None}


def _set(data: dict[str, Any], name: str, value: Any) -> None:
    *parents, last = name.split(".")
    for parent in parents:
        data = data.setdefault(parent, {})
        if not isinstance(data, dict):
            raise BadInputError(f"{name}: {parent} is a value, it has no fields")
    data[last] = value
