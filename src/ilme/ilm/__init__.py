"""Internal LMs: how an E2E model becomes a TokenScorer with its acoustics removed.

    internal = ilme.internal_lm(model)                      # the way that suits the model's family
    internal = ilme.internal_lm(model, "removed")           # the paper's
    internal = ilme.internal_lm(model, "learned", transcripts=lines)
    internal = ilme.internal_lm(model, "internal.safetensors")

One file for each family says what can be put in place of the acoustics: transducer, ctc, attention (the paper's AED),
transformer (attention decoders whose layers are open), memory (any other attention decoder).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from torch import Tensor

from ilme.errors import BadInputError
from ilme.ilm.calibration import Calibration, Estimator, Needs, whole_window
from ilme.protocols import InternalLM, Samples

__all__ = ["Calibration", "InternalLMs", "calibrate", "internal_lm"]

Family = Literal["transducer", "ctc", "attention", "transformer", "memory"]
# Which way suits a family when nothing says more. The paper removes the acoustics; a Transformer that never ran without
# its cross-attention answers that with noise, and one that attends to silence is a language model in all we tried.
DEFAULT = {
    "transducer": "removed",
    "ctc": "removed",
    "attention": "removed",
    "transformer": "silence",
    "memory": "zeroed",
}


class InternalLMs:
    """The function `internal_lm`, with what there is for a model: `internal_lm.available(model)`."""

    def __call__(
        self,
        model: Any,
        how: str | Path | Tensor = "auto",
        *,
        speech: Sequence[Samples] = (),
        transcripts: Sequence[str | Sequence[int]] = (),
        calibration: Calibration | None = None,
        scale: float = 1.0,
    ) -> InternalLM:
        """The internal LM of a model.

        Args:
            model: Any model that implements `ilme.protocols.Transducer`, `CTCModel` or `AttentionDecoder`.
            how: A name out of `available(model)`, `auto` for the family's own, a file that `save_internal_lm` or `ilme
                ilm learn` wrote, or the vector itself that takes the place of the acoustics.
            speech: A few waveforms for ways that average over speech.
            transcripts: Texts, or token ids: of that speech, or what an internal LM is learned from.
            calibration: In place of both, speech that has been encoded already.
            scale: A factor of the logits, for a vector.
        """
        if isinstance(how, Tensor):
            return _restored(model, "vector", {"vector": how}, scale)
        if isinstance(how, Path) or _looks_like_file(how):
            from ilme.ilm.files import load_internal_lm

            return load_internal_lm(Path(how), model)
        estimators = _estimators(model)
        name = self.default(model) if how in ("auto", "internal") else how
        if name not in estimators:
            raise BadInputError(
                f"no internal LM of this {_named(model)} is called {name!r}; there are {', '.join(estimators)}"
            )
        if calibration is None:
            calibration = calibrate(model, speech, transcripts)
        estimator = estimators[name]
        if estimator.needs == "speech" and not calibration.encoded:
            raise BadInputError(f"the internal LM {name!r} is averaged over speech: give a few utterances")
        if estimator.needs == "transcripts" and not calibration.labels:
            raise BadInputError(f"the internal LM {name!r} is learned from text: give transcripts")
        scorer = estimator.make(model, calibration)
        if family(model) in ("transducer", "ctc", "attention"):
            from ilme.ilm.check import check_audio_independent

            check_audio_independent(scorer, model)
        return scorer

    def available(self, model: Any) -> tuple[str, ...]:
        """The names of the ways to take this model's acoustics away."""
        return tuple(_estimators(model))

    def needs(self, model: Any, how: str) -> Needs:
        """What a way needs: `nothing`, `speech` (with transcripts) or `transcripts`."""
        return _estimators(model)[self.default(model) if how in ("auto", "internal") else how].needs

    def default(self, model: Any) -> str:
        """The way that suits the model's family."""
        return DEFAULT[family(model)]


internal_lm = InternalLMs()


def calibrate(
    model: Any, speech: Sequence[Samples] = (), transcripts: Sequence[str | Sequence[int]] = ()
) -> Calibration:
    """Speech, encoded, and transcripts in the model's tokens."""
    labels = [model.tokenizer.encode(t) if isinstance(t, str) else list(t) for t in transcripts]
    encoded = []
    for samples in speech:
        heard = whole_window(model, samples, getattr(model, "rate", 16_000))
        features, lengths = (x.to(model.device) for x in model.features([heard]))
        if hasattr(model, "hidden"):
            encoded.append(model.hidden(features, lengths)[0][0])
        elif hasattr(model, "join") or hasattr(model, "emit"):
            f, frames = model.encode(features, lengths)
            encoded.append(f[0, : int(frames[0])])
        else:
            encoded.append(model.encode(features, lengths))
    return Calibration(encoded, labels or [()] * len(encoded))


def family(model: Any) -> Family:
    """Which of the five files speaks for a model."""
    from ilme.adapters.hf import TransformerAED
    from ilme.models.aed import AED

    if hasattr(model, "join"):
        return "transducer"
    if hasattr(model, "emit"):
        return "ctc"
    if isinstance(model, AED):
        return "attention"
    return "transformer" if isinstance(model, TransformerAED) else "memory"


def _estimators(model: Any) -> dict[str, Estimator]:
    return _module(model).estimators(model)  # type: ignore[no-any-return]


def _restored(model: Any, how: str, tensors: dict[str, Tensor], scale: float) -> InternalLM:
    return _module(model).restored(model, how, tensors, scale)  # type: ignore[no-any-return]


def _module(model: Any) -> Any:
    from importlib import import_module

    return import_module(f"ilme.ilm.{family(model)}")


def _looks_like_file(name: str) -> bool:
    return name.endswith(".safetensors") or "/" in name


def _named(model: Any) -> str:
    return str(getattr(model, "kind", type(model).__name__))
