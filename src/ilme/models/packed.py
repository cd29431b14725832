"""Weights packed for inference on CPU: the same network, its matrix products several times faster.

A search multiplies a few rows by large matrices, again and again. A library that meets the weights anew at
each call spends most of its time arranging them; `pack` arranges them once:

    float32    the same numbers to rounding: oneDNN's blocked layout, or FBGEMM's 16 bits where these hold the weights
               exactly
    float16    weights rounded to 11 bits of mantissa; activations and sums in float32
    bfloat16   weights and activations rounded to 8 bits of mantissa, sums in float32
    int8       weights rounded to 8 bits, one scale per output; activations too, one scale per row; sums in
               int32:  y_r ≈ a_r · (x̂_r · Ŵᵀ) s + b,   x̂_r = round(x_r / a_r),  Ŵ_o = round(W_o / s_o)
               (small matrices that 16 bits hold exactly stay in those: rounding the rows would take longer)

Rows are scaled one by one, so a hypothesis scores the same whatever else is in its batch. A packed module
keeps its parameters under their names: its `state_dict` is that of the module it replaced.

oneDNN compiles a product for every number of rows that it meets, and it and torch keep up to 1,024 of them, half a
megabyte each. Searches and batches meet any number, so products are made of few: `in_few_sizes`.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable
from typing import Any, TypeVar, get_args

import torch
from torch import Tensor, nn

from ilme.errors import BadInputError, IlmeError
from ilme.models.lstm import LSTMStack, LSTMState
from ilme.models.rows import distinct_rows
from ilme.runtime.formats import Format

__all__ = [
    "PackedLSTMStack",
    "PackedLinear",
    "PackingError",
    "attend",
    "has_bfloat16",
    "in_few_sizes",
    "is_packed",
    "pack",
    "packed_copy",
    "packed_product",
    "worth_packing",
]

Product = Callable[[Tensor], Tensor]  # (n, inputs) to (n, outputs), both float32
Network = TypeVar("Network", bound=nn.Module)

ROWS_HINT = 32  # the number of rows that the float layouts are chosen for: about a beam
SIZES = (1, 3, 6, 8, 10, 12, 16, 20, 25, 32, 40, 50, 64)  # numbers of rows that products are compiled for; 25 is a beam
SCORES = 1 << 19  # attention scores made at once: as many as stay in a processor's cache
SMALL = 1 << 20  # weights of a matrix that fits a processor's nearer caches
LARGEST_HALF = 65504.0  # the largest number of 16 bits
SMALLEST = 1e-30  # scale of an all-zero row: keeps 0 / 0 out


def pack(module: Network, format: Format = "float32", linear: Format | None = None) -> Network:
    """Replaces each Linear and LSTMStack inside `module`, in place, by its packed form; returns the module.

    Packing again with another format starts from the original weights; with the same one it changes nothing.
    Encoders are left as they are: they run over whole utterances, where packing gains little.

    Args:
        module: The network.
        format: Format of its products.
        linear: Of its Linear layers, if another. An attention decoder in int8 loses most in its output and query
            layers, which are a sixth of its work: `pack(aed, "int8", linear="float32")` keeps them exact.

    Raises:
        BadInputError: The module is in training mode, not on the CPU or not float32, or no such format.
        PackingError: This build of torch, or this processor, has no kernels for the format.
    """
    linear = format if linear is None else linear
    _check_ready(module)
    for wanted in (format, linear):
        if wanted not in get_args(Format):
            raise BadInputError(f"no packed format is called {wanted!r}; there are {', '.join(get_args(Format))}")
        _check_available(wanted)
    if isinstance(module, nn.Linear | PackedLinear | LSTMStack):
        return _replacement(module, format, linear)  # type: ignore[return-value]
    _pack_children(module, format, linear)
    return module


def packed_copy(module: Network, format: Format = "int8", linear: Format | None = None) -> Network:
    """A second module on the same parameters, packed in a format of its own; `module` stays as it is.

    For an internal LM beside its packed host: in `internal_lm(packed_copy(aed, "int8"))` the rounding is that of one
    component whose weight is small, the products take a third of float32's time, and what the labels bring to the first
    layer is taken from the host, if that is in float32 and has just computed it.
    """
    shared: dict[int, Any] = {id(p): p for p in module.parameters()}
    second = pack(copy.deepcopy(module, shared), format, linear)
    for host, guest in zip(module.modules(), second.modules(), strict=True):
        if isinstance(host, PackedLSTMStack) and isinstance(guest, PackedLSTMStack) and host.format == "float32":
            guest.read_labels_with(host)
    return second


def is_packed(module: nn.Module) -> bool:
    """Whether any product of the module is packed."""
    return any(isinstance(m, PackedLinear | PackedLSTMStack) for m in module.modules())


class PackingError(IlmeError):
    """This build of torch, or this processor, has no kernels for a format."""


class PackedLinear(nn.Module):
    """y = x Wᵀ + b with W packed; in training mode, or with gradients for x, the plain product."""

    def __init__(self, weight: nn.Parameter, bias: nn.Parameter | None, format: Format) -> None:
        super().__init__()
        self.format: Format = format
        self.weight, self.bias = weight, bias
        self.out_features, self.in_features = weight.shape
        self._pack()

    def forward(self, x: Tensor) -> Tensor:
        """(…, inputs) to (…, outputs)."""
        if self.training or x.requires_grad:
            return nn.functional.linear(x, self.weight, self.bias)
        if self.version != _version(self.weight):
            self._pack()
        if x.dim() == 2:
            return self.product(x)
        return self.product(x.reshape(-1, self.in_features)).view(*x.shape[:-1], self.out_features)

    def _pack(self) -> None:
        self.version = _version(self.weight)
        self.product = packed_product(self.weight, self.bias, self.format)

    def _apply(self, fn: Any, recurse: bool = True) -> PackedLinear:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        _check_ready(self)
        self._pack()
        return self

    def extra_repr(self) -> str:
        return f"{self.in_features}, {self.out_features}, {self.format}"


class PackedLSTMStack(LSTMStack):
    """An LSTMStack whose step makes two packed products per layer, and neither of them twice for equal rows.

        gates = W_ih x + (W_hh h + b)

    In a beam many sequences continue one parent: their h, and what else they carry from it, are the same rows, so
    W_hh h is computed once per parent and W_ih x of the first layer once per label.

    The tanh of the cell is computed as tanh(z) = 2σ(2z) − 1, so that one vectorised sigmoid serves all four
    gates; the 2 of the candidate's argument is packed into its weights.
    """

    read: Product  # W_ih x of the first layer

    def __init__(self, stack: LSTMStack, format: Format) -> None:
        nn.Module.__init__(self)
        self.format: Format = format
        self.inputs, self.hidden, self.layers = stack.inputs, stack.hidden, stack.layers
        self.lstm = stack.lstm
        self.training = stack.training
        self._pack()

    def step(self, x: Tensor, state: LSTMState, carried: Tensor | None = None) -> tuple[Tensor, LSTMState]:
        """One input x, or x + carried, (n, inputs): the top layer's output (n, hidden), and the new state."""
        if self.training or x.requires_grad:
            return super().step(x, state, carried)
        if self.versions != self._versions():
            self._pack()
        (h, c), H = state, self.hidden
        new_h, new_c = torch.empty_like(h), torch.empty_like(c)
        siblings = distinct_rows(h) if carried is None else distinct_rows(h, carried)
        if siblings is not None:
            parents, of = siblings
            h, carried = h.index_select(0, parents), None if carried is None else carried.index_select(0, parents)
        for layer, (from_input, from_state) in enumerate(self.products):
            shared = from_state(h[:, layer])
            if layer == 0 and carried is not None:  # W (x + carried) = W x + W carried
                shared += _product_of_distinct(from_input, carried)
            gates = shared if siblings is None else shared.index_select(0, of)
            gates += self.read(x) if layer == 0 else from_input(x)
            gates.sigmoid_()
            enter, forget, candidate, leave = gates.split(H, 1)  # type: ignore[no-untyped-call]
            # c' = f c + i (2σ − 1),   h' = o tanh(c') = 2 o σ(2c') − o
            cell = torch.mul(forget, c[:, layer]).addcmul_(enter, candidate, value=2.0).sub_(enter)
            x = cell.mul(2.0).sigmoid_().mul_(2.0).sub_(1.0).mul_(leave)
            new_h[:, layer], new_c[:, layer] = x, cell
        return x, (new_h, new_c)

    def read_labels_with(self, other: PackedLSTMStack) -> None:
        """Takes W_ih x of the first layer from another stack with the same parameters, until these change."""
        if not isinstance(other.read, _Remembering):
            other.read = _Remembering(other.read)
        self.read = other.read

    def _pack(self) -> None:
        self.versions = self._versions()
        self.products = [self._layer(layer) for layer in range(self.layers)]
        first = self.products[0][0]
        self.read = lambda x: _product_of_distinct(first, x)

    def _layer(self, layer: int) -> tuple[Product, Product]:
        """x → W_ih x and h → W_hh h + b."""
        w_ih, w_hh, b_ih, b_hh = (p.detach().clone() for p in self._parameters_of(layer))
        bias = b_ih + b_hh
        candidate = slice(2 * self.hidden, 3 * self.hidden)  # torch's order of gates: i, f, g, o
        for part in (w_ih, w_hh, bias):
            part[candidate] *= 2
        return packed_product(w_ih, None, self.format), packed_product(w_hh, bias, self.format)

    def _parameters_of(self, layer: int) -> list[Tensor]:
        names = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")
        return [getattr(self.lstm, f"{name}_l{layer}") for name in names]

    def _versions(self) -> list[int]:
        return [_version(p) for p in self.lstm.parameters()]

    def _apply(self, fn: Any, recurse: bool = True) -> PackedLSTMStack:
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]
        _check_ready(self)
        self._pack()
        return self


class _Remembering:
    """A product that is computed once when two stacks ask for the same rows one after the other."""

    def __init__(self, product: Product) -> None:
        self.product = product
        self.last: tuple[Tensor, Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        last = self.last
        if last is None or not torch.equal(last[0], x):
            last = self.last = x, self.product(x)
        return last[1]


def _product_of_distinct(product: Product, x: Tensor) -> Tensor:
    """product(x), equal rows computed once."""
    found = distinct_rows(x)
    if found is None:
        return product(x)
    rows, of = found
    return product(x.index_select(0, rows)).index_select(0, of)


def packed_product(weight: Tensor, bias: Tensor | None, format: Format, many: bool = False) -> Product:
    """The function x (n, inputs) → x Wᵀ + b (n, outputs) for fixed weights (outputs, inputs).

    Args:
        weight: W.
        bias: b.
        format: Of the product.
        many: Whether it is made of many rows at a time, as in an encoder, and not of a beam's.
    """
    weight = weight.detach().contiguous()
    bias = None if bias is None else bias.detach()
    if format == "float16":
        return _half_product(weight, bias)
    if not many and (format == "float32" or (format == "int8" and weight.numel() < SMALL)) and _fits_half(weight):
        return _half_product(weight, bias)
    if format == "int8":
        return _int8_product(weight, bias)
    dtype = torch.float32 if format == "float32" else torch.bfloat16
    return _float_product(weight.to(dtype), None if bias is None else bias.to(dtype))


def in_few_sizes(product: Product) -> Product:
    """The same product, which is only ever asked for the numbers of rows in `SIZES`.

    Rows are added up to the next of them; more than the largest are multiplied piece by piece.
    """

    def product_of_any(x: Tensor) -> Tensor:
        n = len(x)
        if n > SIZES[-1]:
            return torch.cat([product_of_any(piece) for piece in torch.split(x, SIZES[-1])])
        size = next((size for size in SIZES if n <= size), 0)
        if n in (0, size):
            return product(x)
        filled = x.new_zeros(size, x.shape[1])
        filled[:n] = x
        return product(filled)[:n]

    return product_of_any


def _float_product(weight: Tensor, bias: Tensor | None) -> Product:
    linear = torch.ops.mkldnn._linear_pointwise
    arranged = torch.ops.mkldnn._reorder_linear_weight(weight, ROWS_HINT)
    product = in_few_sizes(lambda x: linear(x, arranged, bias, "none", [], ""))
    if weight.dtype == torch.float32:
        return product
    return lambda x: product(x.bfloat16()).float()


def _half_product(weight: Tensor, bias: Tensor | None) -> Product:
    """FBGEMM's: weights in 16 bits, half of what a product of few rows reads, all else in float32."""
    arranged = torch.ops.quantized.linear_prepack_fp16(weight.clamp(-LARGEST_HALF, LARGEST_HALF), bias)
    linear = torch.ops.quantized.linear_dynamic_fp16
    return lambda x: linear(x, arranged)


def _fits_half(weight: Tensor) -> bool:
    """Whether 16 bits hold the weights exactly, as those of most published files, and this build has the product."""
    return _has_half_products() and bool((weight.half().float() == weight).all())


@functools.cache
def _has_half_products() -> bool:
    try:
        return bool(_half_product(torch.ones(16, 16), None)(torch.ones(2, 16)).eq(16).all())
    except (AttributeError, NotImplementedError, RuntimeError):
        return False


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scale: float,
    added: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
) -> Tensor:
    """softmax(Q Kᵀ · scale + added) V, heads (H, q, D/H) and (H, T, D/H) to (q, D), by oneDNN's products.

    In float32 they are twice as fast as torch's attention on processors for which MKL, which that one calls, was not
    made; in bfloat16, where sums and softmax are float32's all the same, four times.
    """
    linear = torch.ops.mkldnn._linear_pointwise
    heads, q, width = query.shape
    query, key = (query * scale).to(dtype).contiguous(), key.to(dtype).contiguous()
    value = value.transpose(1, 2).to(dtype).contiguous()
    added = None if added is None else added.to(dtype)
    mixed = torch.empty(q, heads, width)
    rows = -(-q // max(1, -(-q * key.shape[1] // SCORES)))
    for h in range(heads):
        for low in range(0, q, rows):
            scores = linear(query[h, low : low + rows], key[h], added, "none", [], "").softmax(-1)
            mixed[low : low + rows, h] = linear(scores, value[h], None, "none", [], "")
    return mixed.view(q, heads * width)


def _int8_product(weight: Tensor, bias: Tensor | None) -> Product:
    """Both sides symmetric; the kernel wants unsigned activations, so x̂ is stored with an offset it knows of.

    Without VNNI instructions the kernel adds pairs of products in 16 bits. Activations of 7 bits, not 8, keep
    that sum (2 · 127 · 127) inside.
    """
    levels = 127 if torch.cpu._is_vnni_supported() else 63
    offset = levels + 1
    scale = (weight.abs().amax(1) / 127).clamp_(min=SMALLEST)
    arranged = torch.ops.onednn.qlinear_prepack((weight / scale[:, None]).round_().to(torch.int8), None)
    scale /= levels  # rows come as shares of their largest number
    no_offset = torch.zeros(len(weight), dtype=torch.int32)
    shift = torch.tensor(offset + 0.5)  # a positive number is rounded by adding a half and cutting off
    added = torch.zeros(1) if bias is None else bias
    qlinear = torch.ops.onednn.qlinear_pointwise
    linear = in_few_sizes(
        lambda x: qlinear(x, 1.0, offset, arranged, scale, no_offset, None, 1.0, 0, torch.float32, "none", [], "")
    )

    def product(x: Tensor) -> Tensor:
        largest = x.abs().amax(1, keepdim=True).clamp_(min=SMALLEST)
        levelled = torch.addcdiv(shift, x, largest, value=levels).to(torch.uint8)
        sums = linear(levelled)
        return torch.addcmul(added, sums, largest, out=sums)

    return product


def _pack_children(module: nn.Module, format: Format, linear: Format) -> None:
    from ilme.models.encoder import LSTMEncoder

    for name, child in module.named_children():
        if isinstance(child, LSTMEncoder):
            continue
        if isinstance(child, nn.Linear | PackedLinear | LSTMStack):
            setattr(module, name, _replacement(child, format, linear))
        else:
            _pack_children(child, format, linear)


def _replacement(module: nn.Module, format: Format, linear: Format) -> nn.Module:
    format = format if isinstance(module, LSTMStack) else linear
    if isinstance(module, PackedLinear | PackedLSTMStack) and module.format == format:
        return module
    if isinstance(module, LSTMStack):
        return PackedLSTMStack(module, format)
    packed = PackedLinear(module.weight, module.bias, format)  # type: ignore[arg-type]
    packed.training = module.training
    return packed


def _check_ready(module: nn.Module) -> None:
    if any(m.training for m in module.modules()):
        raise BadInputError("the module is in training mode; call .eval() before pack()")
    for label, parameter in module.named_parameters():
        if parameter.device.type != "cpu":
            raise BadInputError(
                f"packing is for the CPU, but {label} is on {parameter.device}; use .cpu() or do not pack"
            )
        if parameter.dtype != torch.float32:
            raise BadInputError(f"packing starts from float32 weights, but {label} is {parameter.dtype}; use .float()")


def worth_packing(format: Format) -> bool:
    """Whether a network that is to run in a format should be packed: not where it runs in float32 without, only slower.

    Raises:
        PackingError: This build of torch, or this processor, has no kernels for a format other than float32.
    """
    try:
        _check_available(format)
    except PackingError:
        if format != "float32":
            raise
        return False
    return True


def has_bfloat16() -> bool:
    """Whether this processor has bfloat16 instructions that oneDNN uses."""
    try:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    except (AttributeError, RuntimeError):
        return False


def _check_available(format: Format) -> None:
    """Tries the kernels once on a tiny matrix."""
    try:
        supported = format != "bfloat16" or has_bfloat16()
        packed_product(torch.ones(16, 16), torch.zeros(16), format)(torch.ones(2, 16))
    except (AttributeError, NotImplementedError, RuntimeError) as error:
        raise PackingError(
            f"this build of torch ({torch.__version__}) cannot pack weights as {format}; "
            f"leave the model unpacked: it gives the same results, more slowly ({error})"
        ) from error
    if not supported:
        raise PackingError("this processor has no bfloat16 kernels in oneDNN; pack with 'float32' or 'int8'")


def _version(parameter: Tensor) -> int:
    """Counts in-place changes, so that new weights are never answered with old products."""
    return -1 if parameter.is_inference() else parameter._version
