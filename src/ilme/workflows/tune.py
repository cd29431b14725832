"""Find fusion weights on a dev set."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ilme.data.utterances import Utterance
from ilme.errors import BadInputError
from ilme.evaluation.tuning_result import TuningResult, TuningStep
from ilme.recogniser.decoder import DecodingOptions, Processes
from ilme.recogniser.loading import INTERNAL, Parts
from ilme.recogniser.options import SearchSettings
from ilme.recogniser.recogniser import Recogniser
from ilme.runtime.formats import Format
from ilme.search.rescoring import SmoothedLists
from ilme.tuning.temperature import choose_temperature
from ilme.tuning.tuner import AdjustableDecoder, Decoder, TuningOptions
from ilme.tuning.tuner import tune as find_weights
from ilme.workflows.decoding import Progress, Ray, check_whole, held, planned, read_set
from ilme.workflows.phrases import boost_on_dev

__all__ = ["tune", "tune_decoder"]

FEW_SPEAKERS = 5


def tune(
    model: str | Path | Recogniser,
    dev: str | Path | Sequence[Utterance],
    *,
    lm: str = "",
    subtracted: str = INTERNAL,
    phrases: str | Path = "",
    out: Path | None = None,
    split: str = "",
    limit: int = 0,
    device: str = "cpu",
    format: Format = "float32",
    options: TuningOptions | None = None,
    search: SearchSettings | None = None,
    decoding: DecodingOptions | None = None,
    model_options: dict[str, Any] | None = None,
    about: Mapping[str, Any] | None = None,
    processes: Processes | None = None,
    ray: Ray | None = None,
    progress: Progress | None = None,
) -> TuningResult:
    """Finds fusion weights on a dev set, in a few decodes; can be stopped at any moment and started again.

    Args:
        model: As `ilme.load_model` takes it; or a recogniser, with its own scorers and search options.
        dev: A manifest, Lhotse cuts, a folder with either, or utterances.
        lm: The external LM, as `ilme.load_lm` takes it.
        subtracted: What is subtracted: an internal LM by name or file, or a source-domain LM.
        phrases: A file of names and terms that may be said: their weight is tuned last, with three decodes more.
        out: Folder for tuning.json and the decodes; without it nothing is written.
        split: Only utterances whose split is this.
        limit: At most this many utterances; 0 takes all.
        device: Where everything runs.
        format: Format of the weights on a CPU.
        options: Method, ranges, beam, number of decodes.
        search: Search options that differ from the model's own.
        decoding: Batches and cache.
        model_options: What the model's own kind takes, such as a language.
        about: What says which recogniser this is, so that decodes of another in `out` are not continued; hashes of a
            recogniser's weights if not given.
        processes: Which of several processes this is.
        ray: A Ray cluster that shares the work.
        progress: Called with (utterances done, of how many) of each decode.
    """
    options, processes = options or TuningOptions(), processes or Processes()
    chosen: Recogniser | Parts
    if isinstance(model, Recogniser):
        check_whole(lm, subtracted)
        chosen = model
    else:
        _check_method(options.method, lm, subtracted)
        chosen = Parts(
            str(model), lm, "" if options.method in ("BS", "SF") else subtracted, device, format, str(phrases)
        )
        about = {"dev": str(dev) if isinstance(dev, str | Path) else ""}
    utterances = read_set(dev, split, limit)
    with held(out, processes, "tuning.json"):
        recogniser, plan = planned(
            chosen, utterances, None if out is None else out / "decodes",
            about=about, phrases=phrases, decoding=decoding, search=search, model_options=model_options,
        )  # fmt: skip
        with plan.decoder(processes, progress, ray, recogniser) as decoder:
            result = tune_decoder(decoder, recogniser, utterances, options)
        if out is not None and processes.rank == 0:
            result.save(out / "tuning.json")
    return result


def tune_decoder(
    decoder: Decoder,
    recogniser: Recogniser,
    utterances: Sequence[Utterance],
    options: TuningOptions,
    on_step: Callable[[TuningStep], None] | None = None,
) -> TuningResult:
    """The weights for a recogniser whose decoder over a dev set is there.

    A beam of 0 is that of the recogniser's options.
    """
    options = replace(options, beam=options.beam or recogniser.options.beam, length_exponent=recogniser.length_exponent)
    found = find_weights(
        decoder,
        {u.id: u.text for u in utterances},
        options=options,
        speakers={u.id: u.speaker for u in utterances},
        rescore=_rescore(recogniser, options.background),
        **({} if on_step is None else {"on_step": on_step}),
    )
    if not recogniser.listed and options.decoding == "best":
        return found
    tuned = decoder.adjusted(found.search) if found.search and isinstance(decoder, AdjustableDecoder) else decoder
    if recogniser.listed:
        best, _ = boost_on_dev(
            lambda weights: tuned.decode(weights, found.beam),
            recogniser,
            utterances,
            recogniser.listed,
            found.weights,
            found.normaliser,
        )
        found = replace(
            found, weights=replace(found.weights, phrases=best.boost), dev=best.listed + best.others, phrases=True
        )
    if options.decoding == "best":
        return found
    lists, references = tuned.decode(found.weights, found.beam), {u.id: u.text for u in utterances}
    taken = choose_temperature(lists, references, found.normaliser, found.length_exponent, options.decoding)
    search = found.search | ({"consensus": taken.temperature} if taken.temperature else {})
    return replace(found, search=search, dev=taken.counts)


def _rescore(recogniser: Recogniser, shares: tuple[float, ...]) -> SmoothedLists | None:
    """What each ε subtracts, for lists of this recogniser; None where there is nothing to subtract, or no ε but 0."""
    scorer = recogniser.subtracted if any(shares) else None
    if scorer is None:
        return None
    end = recogniser.ends["subtracted"]
    return SmoothedLists(scorer, tuple(dict.fromkeys(shares)), background=recogniser.background, finish=end, rows=256)


def _check_method(method: str, lm: str, subtracted: str) -> None:
    if method != "BS" and not lm:
        raise BadInputError(f"{method} needs an external LM; name one with --lm")
    if method == "ILME-learned" and subtracted == INTERNAL:
        raise BadInputError(
            "ILME-learned subtracts a learned internal LM; make one with `ilme ilm learn`, name it with --subtracted"
        )
