"""The recogniser: any model, with what is added to its scores and what is subtracted, from audio to text.

    audio → features → encoder → search with fusion → n-best lists → text

Transducers, CTC models and attention decoders, our own and others', take the same way and have the same guards.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ilme.adapters.whisper_timestamps import ReadsPastStamps, Stamped, TimestampRules, stamped_segments
from ilme.data.audio import AudioSource, load_audio
from ilme.data.audio_stream import AudioStream
from ilme.errors import BadInputError
from ilme.fusion import SCORERS, Fusion, FusionWeights
from ilme.ilm.calibration import Calibration, whole_window
from ilme.lm.phrase_list import Phrase, PhraseLike, as_phrases, compile_phrases
from ilme.protocols import AttentionDecoder, CompactMemory, CTCModel, Samples, TokenScorer, Transducer
from ilme.recogniser.confidence import WordConfidence, confidences
from ilme.recogniser.encoder_cache import EncoderCache
from ilme.recogniser.options import Options, default_options, safe_boost, with_beam
from ilme.recogniser.packing import pack_networks
from ilme.recogniser.transcripts import Segment, Transcript, Word
from ilme.recogniser.windows import Window, is_silent, stream_windows
from ilme.recogniser.word_times import timed_words
from ilme.runtime.formats import Format
from ilme.runtime.state import State, cat, select
from ilme.search.attention import AttentionOptions, AttentionSearch
from ilme.search.consensus import choose, consensus
from ilme.search.ctc import CTCOptions, CTCSearch
from ilme.search.hypothesis import Hypothesis, NBest
from ilme.search.length import alike_in_length, label_limits
from ilme.search.rescoring import SequenceScorer, complete, finite
from ilme.search.tdt import TDTSearch
from ilme.search.transducer import Idle, TransducerOptions, TransducerSearch
from ilme.smoothing import smoothed
from ilme.tokens import Tokenizer

__all__ = ["Encoded", "Features", "Recogniser"]

Features = Callable[[Sequence[Samples]], tuple[Tensor, Tensor]]
Progress = Callable[[float, float], None]

HEARD = 3000.0  # seconds of audio, padding counted, that an encoder takes at once
UNLIMITED = 10**9  # labels
LISTS_KEPT = 16  # lists of phrases that are not compiled again
WINDOW, RATE = 30.0, 16_000  # of a model that does not say


class Encoded(NamedTuple):
    """What a search needs of B utterances.

    Attributes:
        memory: What the encoder gave, utterance first; of a model with `CompactMemory` its states and their mask.
        seconds: How long each is (B,).
    """

    memory: State
    seconds: Tensor


class Recogniser:
    """One model with its scorers, weights and search options.

    Args:
        model: What `ilme.load_model` gives, or a model of your own (see `ilme.protocols`).
        features: Waveforms to features (B, T, D) and lengths (B,); the model's own if it has it.
        tokenizer: Ids to text; the model's own if it has one.
        lm: What is added: the domain's LM.
        subtracted: What is subtracted: an internal LM, or a source-domain LM.
        phrases: Names and terms that may be said; their weight is the model's own if `weights` gives none.
        weights: The fusion weights.
        options: How to search; the model's family has its own (`ilme.recogniser.options`).
        rate: Samples a second that `features` wants.
        cache: Where encoder outputs are kept, so that recognisers that differ in their scorers share them.
        background: log q (V,), which smooths what is subtracted where the weights have a `background`; None is uniform.
        confidence: How sure it is of a word, as dev speech has taught; None takes what the n-best list says.
    """

    def __init__(
        self,
        model: Transducer | CTCModel | AttentionDecoder,
        features: Features | None = None,
        tokenizer: Tokenizer | None = None,
        *,
        lm: TokenScorer | None = None,
        subtracted: TokenScorer | None = None,
        phrases: Iterable[PhraseLike] = (),
        weights: FusionWeights | None = None,
        options: Options | None = None,
        rate: int = 0,
        cache: EncoderCache | None = None,
        background: Tensor | None = None,
        confidence: WordConfidence | None = None,
    ) -> None:
        self.model: Any = model
        own: Any = model
        self.features: Features = features or own.features
        self.tokenizer: Tokenizer = tokenizer or own.tokenizer
        self.rate: int = rate or getattr(model, "rate", RATE)
        self.window: float = getattr(model, "window", WINDOW)
        self.weights = weights or FusionWeights()
        self.cache = cache
        self.background, self.confidence = background, confidence
        self.is_transducer, self.is_ctc = hasattr(model, "join"), hasattr(model, "emit")
        kind = TransducerOptions if self.is_transducer else CTCOptions if self.is_ctc else AttentionOptions
        self.options: Options = options or default_options(model)
        if not isinstance(self.options, kind):
            raise BadInputError(f"this model is searched with {kind.__name__}, not {type(self.options).__name__}")
        if getattr(lm, "pays_at_end", False):  # whatever the options say: the last word would be free
            self.options = replace(self.options, lm_eos=True, subtracted_eos=self.options.ends[1])
        stamps = getattr(model, "rules", None)
        if isinstance(stamps, TimestampRules):  # to an LM time stamps are not there
            lm = None if lm is None else ReadsPastStamps(lm, stamps.first)
            subtracted = None if subtracted is None else Stamped(subtracted, stamps.first)
        self.lm, self.subtracted = lm, subtracted
        self.listed: tuple[Phrase, ...] = ()
        self.phrases: TokenScorer | None = None
        self._compiled: dict[tuple[Phrase, ...], TokenScorer] = {}
        self.idle = Idle()
        self._list(as_phrases(phrases))

    @property
    def frame_synchronous(self) -> bool:
        """Whether the search goes frame by frame, and the encoder gives (outputs, lengths)."""
        return self.is_transducer or self.is_ctc

    @property
    def ends(self) -> dict[str, bool]:
        """Whether the end of sentence of each scorer is part of a hypothesis' score; that of phrases always is."""
        return dict(zip(SCORERS, (*self.options.ends, True), strict=True))

    def smoothed(self, weights: FusionWeights) -> TokenScorer | None:
        """What is subtracted, as these weights smooth it."""
        return None if self.subtracted is None else smoothed(self.subtracted, weights.background, self.background)

    @property
    def length_exponent(self) -> float:
        """α, if the search ranks by score / (|y| + 1)^α."""
        return self.options.length_normalisation if isinstance(self.options, AttentionOptions) else 0.0

    def without_fusion(self) -> Recogniser:
        """The model as it is: the same recogniser with all weights 0."""
        plain = copy(self)
        plain.weights = FusionWeights()
        return plain

    def with_phrases(self, phrases: Iterable[PhraseLike], boost: float = 0.0) -> Recogniser:
        """The same recogniser that expects these names and terms too, beside those that it has.

        Args:
            phrases: Texts, or texts with weights.
            boost: κ, the weight of all of them; 0 keeps the recogniser's own, or a safe one if it has none.
        """
        more = as_phrases(phrases)
        if not more:
            return self
        other = copy(self)
        other.weights = replace(self.weights, phrases=boost or self.weights.phrases)
        other._list(as_phrases((*self.listed, *more)))
        return other

    def _list(self, phrases: tuple[Phrase, ...]) -> None:
        """Lists the phrases; copies of a recogniser share what was made of the lists that came last."""
        if not phrases:
            return
        scorer = self._compiled.pop(phrases, None)
        if scorer is None:
            scorer = compile_phrases(phrases, self.tokenizer, self.model.tokens, self.model.device)[0]
            stamps = getattr(self.model, "rules", None)
            scorer = ReadsPastStamps(scorer, stamps.first) if isinstance(stamps, TimestampRules) else scorer
        self._compiled[phrases] = scorer
        while len(self._compiled) > LISTS_KEPT:
            self._compiled.pop(next(iter(self._compiled)), None)
        self.listed, self.phrases = phrases, scorer
        if not self.weights.phrases:
            self.weights = replace(self.weights, phrases=safe_boost(self.model))

    def pack(self, format: Format = "float32") -> Recogniser:
        """Arranges the weights of model and LMs for the CPU, in place: faster, and the same results to rounding.

        `int8` is faster still and changes scores a little. Returns itself.
        """
        pack_networks(self.model, (self.lm, self.subtracted), format)
        return self

    # --- from audio to text -----------------------------------------------------------------------------------------

    def transcribe(
        self,
        audio: AudioSource,
        *,
        rate: int | None = None,
        batch: int = 8,
        progress: Progress | None = None,
        phrases: Iterable[PhraseLike] = (),
        words: bool = False,
    ) -> Transcript:
        """What is said in a file or an array, however long.

        Long audio is cut at quiet places into windows that the model can take; silence gives no text. Of a file only
        the windows that are searched are in memory.

        Args:
            audio: A file, or samples (N,) or (channels, N).
            rate: Samples a second of an array; the model's own if not given.
            batch: Windows that are searched at once.
            progress: Called with (seconds done, seconds in all).
            phrases: Names and terms that may be said, beside those that the recogniser has.
            words: Also say when each word was said, and how sure it is.
        """
        expecting = self.with_phrases(phrases)
        blocks, seconds = self._blocks(audio, rate)
        segments: list[Segment] = []
        for group in _groups(stream_windows(blocks, self.rate, self.window), batch):
            segments += [s for window in expecting.recognise(group, words) for s in window]
            if progress is not None:
                progress(group[-1].end, seconds)
        return Transcript(tuple(segments), seconds, str(audio) if isinstance(audio, str | Path) else "")

    def recognise(self, windows: Sequence[Window], words: bool = False) -> list[list[Segment]]:
        """The segments of each window, with their words' times if asked for; windows may be of several recordings."""
        heard = [i for i, w in enumerate(windows) if not is_silent(w.samples)]
        audio = [windows[i].samples for i in heard]
        lists, timed = self.nbest_with_words(audio) if words and heard else (self.nbest(audio) if heard else [], None)
        found = [[Segment(window.start, window.end, "")] for window in windows]
        for i, nbest, own in zip(heard, lists, timed or [[] for _ in heard], strict=True):
            if nbest:
                found[i] = self._segments(windows[i], nbest[0], own)
        return found

    def nbest_with_words(self, audio: Sequence[Samples]) -> tuple[list[NBest], list[list[Word]]]:
        """The n-best list of each waveform, and the words of its first hypothesis, from the waveform's beginning."""
        encoded = self.encode(audio)
        lists = self.search(encoded, self.weights, self.options.beam)
        timed = [self.words(self.choose(encoded, [row]), nbest) if nbest else [] for row, nbest in enumerate(lists)]
        return lists, timed

    def words(self, encoded: Encoded, nbest: NBest) -> list[Word]:
        """The words of one utterance, from its beginning."""
        memory, seconds = self.memory(encoded), float(encoded.seconds[0])
        sure = confidences(nbest, self.length_exponent, self.confidence)
        return timed_words(self.model, memory, seconds, nbest, sure, self.tokenizer)

    def nbest(self, audio: Sequence[Samples]) -> list[NBest]:
        """The n-best list of each waveform that fits into one window."""
        return self.search(self.encode(audio), self.weights, self.options.beam)

    def _segments(self, window: Window, found: Hypothesis, words: Sequence[Word] = ()) -> list[Segment]:
        """The window's one segment; with time stamps those that the stamps make."""
        stamps = getattr(self.model, "rules", None)
        moved = [replace(w, start=window.start + w.start, end=window.start + w.end) for w in words]
        if not isinstance(stamps, TimestampRules):
            return [Segment(window.start, window.end, found.text, found.score, found.scores, tuple(moved))]
        left, segments = iter(moved), []
        for start, end, labels in stamped_segments(list(found.tokens), stamps.first, window.end - window.start):
            text = self.tokenizer.decode(labels)
            times = window.start + start, window.start + end
            own = tuple(islice(left, len(text.split())))
            segments.append(Segment(*times, text, found.score, found.scores, own))
        return segments

    def _blocks(self, audio: AudioSource, rate: int | None) -> tuple[Iterable[Samples], float]:
        """The audio at the model's rate, block by block, and how many seconds it lasts."""
        if isinstance(audio, str | Path) and rate is None:
            stream = AudioStream(audio, self.rate)
            return stream, stream.seconds
        samples = load_audio(audio, self.rate, source_rate=rate)
        return [samples], len(samples) / self.rate

    # --- encoder and search -----------------------------------------------------------------------------------------

    def encode(self, audio: Sequence[Samples]) -> Encoded:
        """What the search needs of B waveforms; each is encoded once if there is a cache."""
        if self.cache is None:
            return self._encode(audio)
        return Encoded(*self.cache(audio, lambda: self._encode(audio), self.model.device))

    @torch.no_grad()
    def _encode(self, audio: Sequence[Samples]) -> Encoded:
        """A search may take more utterances at a time than an encoder has memory for: they are encoded in pieces."""
        features, lengths = (x.to(self.model.device) for x in self.features(audio))
        seconds = torch.tensor([len(a) / self.rate for a in audio], device=self.model.device, dtype=torch.float64)
        if isinstance(self.model, CompactMemory):
            hidden, mask = self.model.hidden(features, lengths)
            return Encoded({"hidden": hidden, "mask": mask}, seconds)
        rows = max(1, int(HEARD * self.rate / max(1, *(len(a) for a in audio))))
        pieces = zip(torch.split(features, rows), torch.split(lengths, rows), strict=True)
        return Encoded(cat([self.model.encode(*piece) for piece in pieces]), seconds)

    def memory(self, encoded: Encoded) -> State:
        """What the model's own search takes: a transducer's acoustic terms and lengths, or a decoder's memory."""
        if isinstance(self.model, CompactMemory):
            return self.model.memory(encoded.memory["hidden"], encoded.memory["mask"])
        return encoded.memory

    def search(self, encoded: Encoded, weights: FusionWeights | None = None, beam: int = 0) -> list[NBest]:
        """One n-best list, with text, for each utterance of what `encode` gave.

        Args:
            encoded: The utterances.
            weights: The fusion weights; the recogniser's own if not given.
            beam: Of the search; the options' own if not given.
        """
        weights = self.weights if weights is None else weights
        options = with_beam(self.options, beam or self.options.beam)
        most = getattr(self.model, "max_labels", UNLIMITED)
        limits = torch.tensor(
            label_limits(encoded.seconds.tolist(), options.labels_per_second, most), device=self.model.device
        )
        memory = self.memory(encoded)
        lists = self._lists(memory, limits, weights, options)
        if not options.joined:
            return [choose(nbest, options.consensus, self.length_exponent) for nbest in lists]
        if not (weights.lm or weights.subtracted):  # the plain model, as it is
            return lists
        plain = self._lists(memory, limits, FusionWeights(phrases=weights.phrases), options)
        pairs = zip(lists, plain, strict=True)
        return [self.agreed(nbest, other, weights, options.consensus) for nbest, other in pairs]

    def agreed(self, fused: NBest, plain: NBest, weights: FusionWeights, temperature: float) -> NBest:
        """The list of a search with LMs, what it and the list without them agree on first.

        If only the plain list has that, it gets the scores that it would have had in the other.
        """
        if not fused:
            return fused
        chosen = consensus([fused, plain], temperature, self.length_exponent)[0]
        known = {h.tokens: h for h in fused}
        if chosen.tokens not in known:
            found = {"lm": self.lm, "subtracted": self.smoothed(weights), "phrases": self.phrases}
            used = {n: SequenceScorer(s, finish=self.ends[n]) for n, s in found.items() if s is not None}
            (chosen,) = finite(complete({"": [chosen]}, **used))[""]
            score = chosen.scores.fused(weights) / (len(chosen.tokens) + 1) ** self.length_exponent
            chosen = replace(chosen, score=score)
        return [known.pop(chosen.tokens, chosen), *known.values()]

    def _lists(self, memory: State, limits: Tensor, weights: FusionWeights, options: Options) -> list[NBest]:
        """The lists of one search, best first."""
        fusion = self.fusion(weights)
        if isinstance(options, AttentionOptions):
            return [self.told(nbest) for nbest in AttentionSearch(self.model, fusion, options)(memory, limits)]
        frames, lengths = memory
        capped = bool((limits < UNLIMITED).any())
        found = self._frame_search(fusion, options)(frames, lengths, limits if capped else None)
        return [self.told(nbest) for nbest in found]

    def told(self, nbest: NBest) -> NBest:
        """A list as a search gave it, with text, without what cannot be."""
        if self.options.plausible_length:
            nbest = alike_in_length(nbest, self.length_exponent)
        return [replace(h, text=self.tokenizer.decode(list(h.tokens))) for h in nbest]

    def _frame_search(self, fusion: Fusion, options: TransducerOptions | CTCOptions) -> TransducerSearch | CTCSearch:
        if isinstance(options, CTCOptions):
            return CTCSearch(self.model, fusion, options)
        if hasattr(self.model, "durations"):
            return TDTSearch(self.model, fusion, options)
        return TransducerSearch(self.model, fusion, options, self.idle)

    def fusion(self, weights: FusionWeights) -> Fusion:
        """What a search adds and subtracts, with these weights."""
        return Fusion(self.lm, self.subtracted, weights, self.background, self.phrases)

    def choose(self, encoded: Encoded, rows: Sequence[int]) -> Encoded:
        """The part of what `encode` gave that belongs to these utterances."""
        return Encoded(*select(tuple(encoded), torch.tensor(list(rows), device=self.model.device)))

    def calibrate(self, audio: Iterable[Samples], transcripts: Sequence[Sequence[int]]) -> Calibration:
        """A little speech, encoded, and what is said in it: what internal LMs are averaged over or learned from."""
        heard = (whole_window(self.model, samples, self.rate) for samples in audio)
        return Calibration([self._unpadded(self.encode([samples])) for samples in heard], transcripts)

    def _unpadded(self, encoded: Encoded) -> State:
        if self.frame_synchronous:
            f, lengths = encoded.memory
            return f[0, : int(lengths[0])]
        if isinstance(self.model, CompactMemory):
            hidden, mask = encoded.memory["hidden"], encoded.memory["mask"]
            return hidden[0] if mask is None else hidden[0][mask[0]]
        return encoded.memory


def _groups(windows: Iterator[Window], size: int) -> Iterator[Sequence[Window]]:
    if size < 1:
        raise BadInputError(f"batch must be at least 1, got {size}")
    while group := list(islice(windows, size)):
        yield group
