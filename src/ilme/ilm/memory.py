"""The internal LM of any attention decoder, open or closed: the decoder over a memory that holds no speech.

Nothing inside such a decoder can be replaced, as in an ONNX graph, but what it attends to can be chosen:

    zeroed         what the model itself calls a memory without audio: an encoder's output of zeros, or none at all
    silence        the memory of silence
    mean-encoder   the encoder's output averaged over speech
    learned        a few encoder states, trained to predict transcripts; of a model that gradients pass through
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ilme.errors import CheckpointError
from ilme.ilm.calibration import Calibration, Estimator
from ilme.ilm.hosted import HostedLM
from ilme.protocols import AttentionDecoder, CompactMemory
from ilme.runtime.state import State, map_tensors

__all__ = ["MemoryInternalLM", "estimators", "restored"]

SILENCE = 3.0  # seconds, for a model that does not always take a full window
STATES = 8  # that are learned; small noise sets them apart, or they would stay alike
FLOOR = -1e4  # the log-probability of a suppressed unit; finite, so that μ·ILM never makes ∞ − ∞


class MemoryInternalLM(HostedLM):
    """log P(y_u | m, y_{<u}) for a fixed memory m; implements `ilme.protocols.TokenScorer`.

    Args:
        host: The model whose internal LM this is.
        memory: The memory of one utterance (B = 1).
        how: How it was estimated.
        tensors: What `restored` makes the memory of again.
    """

    host: AttentionDecoder
    scale = 1.0

    def __init__(self, host: AttentionDecoder, memory: State, how: str, tensors: dict[str, Tensor]) -> None:
        self.host, self.memory, self.how, self.tensors = host, memory, how, tensors

    @torch.no_grad()
    def start(self, n: int) -> tuple[Tensor, State]:
        rows, state = self.host.start(self.memory)
        state = map_tensors(lambda x: x.expand(n, *x.shape[1:]), state)
        return rows.clamp(min=FLOOR).expand(n, -1), state

    @torch.no_grad()
    def score(self, labels: Tensor, state: State) -> tuple[Tensor, State]:
        rows, state = self.host.step(labels, state, self.memory)
        return rows.clamp(min=FLOOR), state


def estimators(model: Any) -> dict[str, Estimator]:
    """The ways that this model has: all of them if it can make features and keeps encoder states."""
    found = {"zeroed": Estimator(lambda model, _: MemoryInternalLM(model, model.without_audio(), "zeroed", {}))}
    if hasattr(model, "features"):
        found["silence"] = Estimator(_silence)
    if isinstance(model, CompactMemory):
        found["mean-encoder"] = Estimator(_mean_encoder, "speech")
        if hasattr(model, "teacher_forced"):
            found["learned"] = Estimator(_learned, "transcripts")
    return found


def restored(model: Any, how: str, tensors: dict[str, Tensor], scale: float) -> MemoryInternalLM:
    """Makes an internal LM again from its tensors."""
    if how == "zeroed":
        return MemoryInternalLM(model, model.without_audio(), how, {})
    if how == "silence" and not isinstance(model, CompactMemory):
        return _silence(model, Calibration())
    hidden = tensors.get("hidden")
    if hidden is None or not isinstance(model, CompactMemory):
        raise CheckpointError(
            f"this internal LM ({how!r}) was made for another kind of model: it has no encoder states"
        )
    width = getattr(model, "encoder_width", hidden.shape[-1])
    if hidden.dim() != 2 or hidden.shape[1] != width or not len(hidden):
        raise CheckpointError(f"encoder states must be (T, {width}), this internal LM's are {tuple(hidden.shape)}")
    return _attending(model, hidden.to(model.device), how)  # type: ignore[attr-defined]


def _attending(model: Any, hidden: Tensor, how: str) -> MemoryInternalLM:
    return MemoryInternalLM(model, model.memory(hidden[None]), how, {"hidden": hidden})


@torch.no_grad()
def _silence(model: Any, _: Calibration) -> MemoryInternalLM:
    """A full window of silence for a model that always takes one, else three seconds."""
    seconds = model.window if getattr(model, "fixed_length", False) else min(SILENCE, model.window)
    features, lengths = model.features([np.zeros(int(seconds * model.rate), dtype=np.float32)])
    features, lengths = features.to(model.device), lengths.to(model.device)
    if isinstance(model, CompactMemory):
        return _attending(model, model.hidden(features, lengths)[0][0], "silence")
    return MemoryInternalLM(model, model.encode(features, lengths), "silence", {})


@torch.no_grad()
def _mean_encoder(model: Any, calibration: Calibration) -> MemoryInternalLM:
    """Frame by frame for a model with a fixed window; else over all frames, and the memory is a single frame."""
    states = [h.to(model.device, torch.float32) for h in calibration.encoded]
    fixed = getattr(model, "fixed_length", False)
    mean = torch.stack(states).mean(0) if fixed else torch.cat(states).mean(0, keepdim=True)
    return _attending(model, mean, "mean-encoder")


class _LearnedStates(nn.Module):
    """Encoder states (T, D) that are learned."""

    def __init__(self, states: Tensor) -> None:
        super().__init__()
        self.states = nn.Parameter(states.clone())

    def forward(self) -> Tensor:
        return self.states


def _learned(model: Any, calibration: Calibration) -> MemoryInternalLM:
    """States that predict the transcripts; they start near the mean of speech, where there is some."""
    from ilme.ilm.learned_context import LearnedContextOptions, learn

    def begin() -> _LearnedStates:
        mean = torch.zeros(model.encoder_width, device=model.device)
        if calibration.encoded:
            mean = torch.cat([h.to(model.device, torch.float32) for h in calibration.encoded]).mean(0)
        noise = 0.02 * torch.randn(STATES, len(mean), device=mean.device)
        return _LearnedStates(mean + noise)

    found = learn(model, begin, calibration.labels, LearnedContextOptions())
    return _attending(model, found.states.detach().clone(), "learned")
