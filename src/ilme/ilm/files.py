"""Internal LMs on disk: one safetensors file with what takes the place of the acoustics.

The header's entry `ilme-internal` is {"version", "kind", "tokens", "how", "scale"}. The file also holds a fingerprint:
numbers out of the weights of the model that it was made for, so that it is refused for another training of that model.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ilme.errors import BadInputError, CheckpointError
from ilme.protocols import InternalLM
from ilme.runtime.configs import json_object
from ilme.runtime.tensors import check_finite, has_entry, read_tensors, write_tensors

__all__ = ["check_fingerprint", "fingerprint", "is_internal_lm", "load_internal_lm", "save_internal_lm"]

VERSION = 2  # 1 had learned vectors alone
_ENTRY = "ilme-internal"
_FINGERPRINT = "fingerprint"
_SAMPLED = 128  # numbers of each matrix in a fingerprint
# By how much a model's fingerprint may vary, for storage in 16 or 8 bits. Measured on a study's networks: 8 bits change
# it by 0.008, and two trainings of one RNN-T differ by 0.38, of one AED by 1.23.
_ROUNDING = 0.05
_LARGEST_SCALE = 100
_OTHER_WAYS = ("learned", "vector")  # made outside of adaptation, from transcripts or by hand
_AGAIN = "`ilme ilm learn` or `ilme adapt` makes one for this model"


def save_internal_lm(file: Path, scorer: InternalLM) -> None:
    """Writes an internal LM."""
    host = scorer.host
    about = {
        "version": VERSION,
        "kind": host.kind,
        "tokens": len(host.tokens),
        "how": scorer.how,
        "scale": scorer.scale,
    }
    tensors = {name: value.detach().float() for name, value in scorer.tensors.items()}
    if hasattr(host, "language_parameters"):
        tensors[_FINGERPRINT] = fingerprint(host)
    write_tensors(file, tensors, {_ENTRY: json.dumps(about)})


def is_internal_lm(name: str | Path) -> bool:
    """Whether it is a file that `save_internal_lm` wrote."""
    return has_entry(Path(name), _ENTRY)


def load_internal_lm(file: str | Path, model: Any, how: str = "") -> InternalLM:
    """Reads an internal LM for this model, which may be stored in fewer bits than the one it was made for.

    Args:
        file: What `save_internal_lm` wrote.
        model: The model.
        how: How it was estimated, for files that do not say.
    """
    tensors, header = read_tensors(Path(file))
    check_finite(file, tensors)
    if _ENTRY not in header and not how:
        raise CheckpointError(f"{file} is not an internal LM; `ilme ilm learn` and `ilme adapt` write one")
    if _ENTRY not in header:  # a domain folder of version 1: the card says how
        return _made(file, model, how, tensors, 1.0)
    about = json_object(header[_ENTRY], f"{file}, entry {_ENTRY!r} of its header,")
    if about.get("version") not in (1, VERSION):
        raise CheckpointError(
            f"{file} has format version {str(about.get('version'))[:20]}, this program reads {VERSION}; update ilme"
        )
    found, expected = (about.get("kind"), about.get("tokens")), (model.kind, len(model.tokens))
    if found != expected:
        raise CheckpointError(
            f"{file} was made for another model: (kind, tokens) is {found}, this one's is {expected}; {_AGAIN}"
        )
    scale = about.get("scale")
    if not isinstance(scale, int | float) or isinstance(scale, bool) or not 0 < scale <= _LARGEST_SCALE:
        raise CheckpointError(f"{file} is damaged: its scale must lie between 0 and {_LARGEST_SCALE}; {_AGAIN}")
    mark = tensors.pop(_FINGERPRINT, None)
    if hasattr(model, "language_parameters"):
        check_fingerprint(file, mark, model)
    return _made(file, model, about.get("how", "learned"), tensors, float(scale))


def _made(file: str | Path, model: Any, how: Any, tensors: dict[str, Tensor], scale: float) -> InternalLM:
    """The internal LM, after one step with it: tensors of another shape fail here and not in the middle of a search."""
    from ilme.ilm import _restored, internal_lm

    known = (*internal_lm.available(model), *_OTHER_WAYS)
    if how not in known:
        raise CheckpointError(f"{file} is no internal LM of this model: it was made by {str(how)[:40]!r}; {_AGAIN}")
    try:
        scorer = _restored(model, how, tensors, scale)
        rows, _ = scorer.start(1)
    except CheckpointError as error:
        raise CheckpointError(f"{file}: {error}; {_AGAIN}") from error
    except (BadInputError, ArithmeticError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"{file} does not fit this model, or is damaged; {_AGAIN}") from error
    if bool(rows.isnan().any()):
        raise CheckpointError(f"{file} gives numbers that are not finite with this model; {_AGAIN}")
    return scorer


@torch.no_grad()
def fingerprint(model: Any) -> Tensor:
    """Numbers from all over each weight matrix that the internal LM uses: (matrices, _SAMPLED)."""
    matrices = [p.flatten() for p in model.language_parameters().values() if p.ndim > 1]
    evenly = torch.arange(_SAMPLED)
    return torch.stack([w[(evenly * (len(w) - 1) // (_SAMPLED - 1)).to(w.device)] for w in matrices]).float().cpu()


def check_fingerprint(file: str | Path, found: Tensor | None, model: Any, again: str = _AGAIN) -> None:
    """Refuses a file that another training of the same network made; warns of one that does not say.

    max over the matrices of |a − b| / |a|, where a is the model's row and b the file's
    """
    if found is None:
        warnings.warn(
            f"{file} does not say which training of the model it was learned for, and may be another's; {again}",
            stacklevel=3,
        )
        return
    own = fingerprint(model)
    same = found.shape == own.shape and found.is_floating_point()
    change = ((found.float() - own).norm(dim=1) / own.norm(dim=1).clamp(min=1e-6)).max() if same else torch.tensor(1.0)
    if not change <= _ROUNDING:
        raise CheckpointError(
            f"{file} was learned for another training of such a model: the weights differ by {float(change):.0%}, and "
            f"storage in 16 or 8 bits explains {_ROUNDING:.0%}; {again}"
        )
