"""Learns from text what stands in for the acoustics of an RNN-T or an AED: one vector and one number.

    minimise  − Σ_y Σ_u log softmax(κ z_u(y; v))_{y_u}     over v and κ; every weight of the model is frozen

    RNN-T: z_u = J(v + g_u) without the blank; v (J,) is where f_t enters the joint network     (Eq. 24 has v = 0)
    AED:   z_u = W_d DecoderRNN(h_{u−1}, e_{u−1} + v) + b_d; v (E,) is where the context enters  (Eq. 31 has v = 0)

A network that was trained to listen is too sure of itself where there is nothing to hear; κ says by how much. The
learning starts from v = 0 and κ = 1, the paper's estimate, keeps a tenth of the sentences aside, and returns what
predicted those best, so it cannot end worse than it began. It needs the source transcripts and no audio.
"""

from __future__ import annotations

import json
import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ilme.errors import BadInputError, CheckpointError
from ilme.models.aed import AED
from ilme.models.rnnt import RNNT

__all__ = ["StandIn", "StandInOptions", "is_stand_in", "learn_stand_in", "load_stand_in", "save_stand_in"]

VERSION = 1
_ENTRY = "ilme-internal"  # in the header of the file
_DEAF = ("encoder.", "encoder_head.", "attend.", "ctc.")  # parts that the internal LM does not use
_SAMPLED = 128  # numbers of each matrix in a fingerprint
# By how much a model's fingerprint may vary, for storage in 16 or 8 bits. Measured on a study's networks: 8 bits change
# it by 0.008, and two trainings of one RNN-T differ by 0.38, of one AED by 1.23.
_ROUNDING = 0.05


@dataclass(frozen=True)
class StandIn:
    """What an internal LM puts in place of the acoustics.

    Attributes:
        vector: v, (J,) of an RNN-T or (E,) of an AED.
        scale: κ, a factor of the logits.
    """

    vector: Tensor
    scale: float = 1.0


@dataclass(frozen=True)
class StandInOptions:
    """How long and how the stand-in is learned.

    Attributes:
        sentences: Most sentences that are read, drawn from all that are given.
        epochs: Passes over them.
        batch: Sentences in a step.
        rate: Adam's first learning rate; it falls to 0 along a cosine.
        scale: Learn κ as well; otherwise it stays 1.
        seed: Of the draw and the order.
    """

    sentences: int = 4000
    epochs: int = 4
    batch: int = 32
    rate: float = 0.02
    scale: bool = True
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("sentences", "epochs", "batch"):
            if getattr(self, name) < 1:
                raise BadInputError(f"{name} must be at least 1, got {getattr(self, name)}")


def learn_stand_in(
    model: RNNT | AED, sentences: Sequence[Sequence[int]], options: StandInOptions | None = None
) -> StandIn:
    """Learns the stand-in of a model in evaluation mode; the model does not change.

    Args:
        model: The network.
        sentences: Token ids without special ids: the transcripts that the model was trained on, or text like them.
        options: How.
    """
    options = options or StandInOptions()
    if not isinstance(model, RNNT | AED):
        raise BadInputError(f"a stand-in is learned for an RNN-T or an AED, not for {type(model).__name__}")
    if model.training:
        raise BadInputError("the model is in training mode: call model.eval() before its internal LM is learned")
    usable = [list(y) for y in sentences if len(y)]
    if len(usable) < 2:
        raise BadInputError(f"a learned internal LM needs at least two sentences, got {len(usable)}")
    random.Random(options.seed).shuffle(usable)
    usable = usable[: max(2, options.sentences)]
    aside = max(1, len(usable) // 10)
    with torch.enable_grad():
        return _fit(model, _batches(usable[aside:], options.batch), _batches(usable[:aside], options.batch), options)


def _batches(sentences: list[list[int]], size: int) -> list[list[list[int]]]:
    """Sentences of like length together: little padding."""
    ordered = sorted(sentences, key=len)
    return [ordered[at : at + size] for at in range(0, len(ordered), size)]


def _fit(
    model: RNNT | AED, train: list[list[list[int]]], aside: list[list[list[int]]], options: StandInOptions
) -> StandIn:
    """The stand-in that predicts the sentences kept aside best."""
    weight = model.output.weight
    width = model.config.joint if isinstance(model, RNNT) else model.embedding.embedding_dim
    vector = torch.zeros(width, device=weight.device, dtype=weight.dtype, requires_grad=True)
    sharpness = torch.zeros((), device=weight.device, dtype=weight.dtype, requires_grad=True)  # log κ
    learned = [vector, sharpness] if options.scale else [vector]
    optimiser = torch.optim.Adam(learned, lr=options.rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, options.epochs * len(train))
    order = random.Random(options.seed)
    best, lowest = StandIn(vector.detach().clone()), _mean_loss(model, aside, vector, sharpness)
    for _ in range(options.epochs):
        order.shuffle(train)
        for batch in train:
            gradients = torch.autograd.grad(_losses(model, batch, vector, sharpness).mean(), learned)
            for parameter, gradient in zip(learned, gradients, strict=True):
                parameter.grad = gradient
            optimiser.step()
            schedule.step()
        now = _mean_loss(model, aside, vector, sharpness)
        if now < lowest:
            best, lowest = StandIn(vector.detach().clone(), float(sharpness.detach().exp())), now
    return best


@torch.no_grad()
def _mean_loss(model: RNNT | AED, batches: list[list[list[int]]], vector: Tensor, sharpness: Tensor) -> float:
    """−log P per label, in nats: the logarithm of the perplexity."""
    return float(torch.cat([_losses(model, batch, vector, sharpness) for batch in batches]).double().mean())


def _losses(model: RNNT | AED, sentences: Sequence[Sequence[int]], vector: Tensor, sharpness: Tensor) -> Tensor:
    """−log P of every label of the sentences, of an AED also of their ends: (N,)."""
    rows = [torch.tensor(y, dtype=torch.long) for y in sentences]
    labels = pad_sequence(rows, batch_first=True).to(model.device)
    lengths = torch.tensor([len(row) for row in rows], device=model.device)[:, None]
    steps = torch.arange(labels.shape[1] + 1, device=model.device)
    if isinstance(model, RNNT):
        inside = steps[:-1] < lengths
        with torch.no_grad():
            g = model.predict_all(labels)[:, :-1][inside]
        logits = model.join(vector.expand_as(g), g) * sharpness.exp()
        logits[:, model.tokens.blank] = -torch.inf
        return F.cross_entropy(logits, labels[inside], reduction="none")
    inside = steps <= lengths
    targets = F.pad(labels, (0, 1)).masked_fill(steps == lengths, model.tokens.eos or 0)
    state, outputs = model.rnn.zero_state(len(rows)), []
    for previous in F.pad(labels, (1, 0), value=model.sos).unbind(1):
        h, state = model.decode(previous, vector, state)
        outputs.append(h)
    logits = model.output(torch.stack(outputs, 1)[inside]) * sharpness.exp()
    return F.cross_entropy(logits, targets[inside], reduction="none")


def save_stand_in(file: Path, stand_in: StandIn, model: RNNT | AED) -> None:
    """One safetensors file: v, the fingerprint of the model, and in the header κ and the model's kind and size."""
    from ilme.models.checkpoint import write_tensors

    about = {"version": VERSION, "kind": model.kind, "tokens": len(model.tokens), "scale": stand_in.scale}
    file.parent.mkdir(parents=True, exist_ok=True)
    tensors = {"vector": stand_in.vector, "fingerprint": _fingerprint(model)}
    write_tensors(file, tensors, {_ENTRY: json.dumps(about)})


@torch.no_grad()
def _fingerprint(model: RNNT | AED) -> Tensor:
    """Numbers from all over each weight matrix that the internal LM uses: (matrices, _SAMPLED)."""
    matrices = [p.flatten() for name, p in model.named_parameters() if p.ndim > 1 and not name.startswith(_DEAF)]
    evenly = torch.arange(_SAMPLED)
    return torch.stack([w[(evenly * (len(w) - 1) // (_SAMPLED - 1)).to(w.device)] for w in matrices]).float().cpu()


def _check_fingerprint(file: str | Path, found: Tensor | None, model: RNNT | AED) -> None:
    """Refuses a file that another training of the same network made; warns of one that does not say.

    max over the matrices of |a − b| / |a|, where a is the model's row and b the file's
    """
    again = "`ilme ilm learn` makes one for this model"
    if found is None:
        warnings.warn(
            f"{file} does not say which training of the model it was learned for, and may be another's; {again}",
            stacklevel=3,
        )
        return
    own = _fingerprint(model)
    same = found.shape == own.shape
    change = ((found.float() - own).norm(dim=1) / own.norm(dim=1).clamp(min=1e-6)).max() if same else torch.tensor(1.0)
    if not change <= _ROUNDING:
        raise CheckpointError(
            f"{file} was learned for another training of such a model: the weights differ by {float(change):.0%}, and "
            f"storage in 16 or 8 bits explains {_ROUNDING:.0%}; {again}"
        )


def is_stand_in(name: str | Path) -> bool:
    """Whether it is a file that `save_stand_in` wrote."""
    from safetensors import SafetensorError, safe_open

    file = Path(name)
    if file.suffix != ".safetensors" or not file.is_file():
        return False
    try:
        with safe_open(file, framework="pt") as reader:
            return _ENTRY in (reader.metadata() or {})
    except (SafetensorError, OSError):
        return False


def load_stand_in(file: str | Path, model: RNNT | AED) -> StandIn:
    """Reads what `save_stand_in` wrote, for this model; it may be stored in fewer bits than the one it was made for."""
    from ilme.models.checkpoint import read_tensors

    tensors, header = read_tensors(Path(file))
    if _ENTRY not in header or "vector" not in tensors:
        raise CheckpointError(f"{file} is not a learned internal LM; `ilme ilm learn` writes one")
    about = json.loads(header[_ENTRY])
    if about["version"] != VERSION:
        raise CheckpointError(
            f"{file} has format version {about['version']}, this program reads {VERSION}; update ilme"
        )
    width = model.config.joint if isinstance(model, RNNT) else model.embedding.embedding_dim
    found = (about["kind"], about["tokens"], *tensors["vector"].shape)
    expected = (model.kind, len(model.tokens), width)
    if found != expected:
        raise CheckpointError(
            f"{file} was learned for another model: (kind, tokens, width) is {found}, this one's is {expected}"
        )
    _check_fingerprint(file, tensors.get("fingerprint"), model)
    weight = model.output.weight
    return StandIn(tensors["vector"].to(weight.device, weight.dtype), float(about["scale"]))
