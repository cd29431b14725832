"""Tiny models in ONNX: attention models as Optimum writes them, a stateless transducer as icefall does."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import torch
from torch import nn

from tests.adapters.tiny import WhisperWords

N, FRAMES, LENGTH = (torch.export.Dim(x, min=1, max=60) for x in ("n", "frames", "length"))
NEW = torch.export.Dim("new", min=1, max=8)


class Encoder(nn.Module):
    def __init__(self, model) -> None:
        super().__init__()
        self.encoder = model.model.get_encoder()

    def forward(self, given):
        return self.encoder(given).last_hidden_state


def run(decoder, labels, past, cross):
    """The decoder with all sizes left open: logits, and the keys and values of the labels, the past ones included."""
    start, new = past[0][0].shape[2] if past else 0, labels.shape[1]
    x, cache = decoder.embed(labels, start), []
    allowed = torch.arange(start + new)[None, :] <= torch.arange(start, start + new)[:, None]
    for i, layer in enumerate(decoder.layers):
        query, key, value = (layer.split(part) for part in layer.self_qkv(layer.self_norm(x)).chunk(3, dim=-1))
        if decoder.rotate is not None:
            query, key = decoder.rotate(query, start), decoder.rotate(key, start)
        if past:
            key, value = torch.cat([past[i][0], key], 2), torch.cat([past[i][1], value], 2)
        cache += [key, value]
        mixed = nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=allowed, scale=layer.scale)
        x = x + layer.self_out(mixed.transpose(1, 2).flatten(2))
        query = layer.split(layer.cross_q(layer.cross_norm(x)))
        mixed = nn.functional.scaled_dot_product_attention(query, *cross[i], scale=layer.scale)
        x = x + layer.cross_out(mixed.transpose(1, 2).flatten(2))
        x = x + layer.forward(layer.forward_norm(x))
    return decoder.output(decoder.norm(x)), cache


def in_pairs(flat):
    return [tuple(flat[i : i + 2]) for i in range(0, len(flat), 2)]


class FirstLabels(nn.Module):
    """The branch without a cache: it makes the keys and values of the encoder's states, too."""

    def __init__(self, model) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(self, input_ids, encoder_hidden_states):
        cross = [layer.keys_and_values(encoder_hidden_states) for layer in self.decoder.layers]
        logits, cache = run(self.decoder, input_ids, None, cross)
        return (logits, *(x for own, other in zip(in_pairs(cache), cross, strict=True) for x in (*own, *other)))


class NextLabel(nn.Module):
    """The branch with a cache: the encoder's states are not read again."""

    def __init__(self, model) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(self, input_ids, past):
        layers = [past[i : i + 4] for i in range(0, len(past), 4)]
        logits, cache = run(self.decoder, input_ids, [p[:2] for p in layers], [p[2:] for p in layers])
        return (logits, *cache)


class AnyLabels(nn.Module):
    """One branch for everything: the cache may be empty, and the encoder's states are read at every step."""

    def __init__(self, model) -> None:
        super().__init__()
        self.decoder = model.decoder

    def forward(self, input_ids, encoder_hidden_states, past):
        cross = [layer.keys_and_values(encoder_hidden_states) for layer in self.decoder.layers]
        logits, cache = run(self.decoder, input_ids, in_pairs(past), cross)
        return (logits, *cache)


def names(kind: str, layers: int, sides=("decoder", "encoder")) -> list[str]:
    return [f"{kind}.{i}.{side}.{part}" for i in range(layers) for side in sides for part in ("key", "value")]


def export(module, example, path, shapes, inputs, outputs):
    torch.onnx.export(
        module.eval(),
        example,
        path,
        dynamo=True,
        dynamic_shapes=shapes,
        input_names=inputs,
        output_names=outputs,
        verbose=False,
        optimize=True,
    )
    return onnx.load(path)


def branch(model, name: str, outputs: list[str], nothing: dict[str, tuple[int, int]]):
    """A graph as a branch: it reads the outer graph's inputs by name; outputs it lacks are empty tensors."""
    graph = model.graph
    for output, (heads, width) in nothing.items():
        empty = onnx.numpy_helper.from_array(np.zeros((0, heads, 1, width), np.float32), output)
        graph.node.append(onnx.helper.make_node("Constant", [], [output], name=f"no {output}", value=empty))
        graph.output.append(onnx.helper.make_tensor_value_info(output, onnx.TensorProto.FLOAT, [0, heads, 1, width]))
    known = {o.name: o for o in graph.output}
    return onnx.helper.make_graph(
        list(graph.node), name, [], [known[o] for o in outputs], initializer=list(graph.initializer)
    )


def write_encoder(model, path: Path) -> None:
    if model.fixed_length:
        frames = int(model.window * 100)
        given, shapes, name = torch.randn(2, 80, frames), ({0: N},), "input_features"
    else:
        samples = torch.export.Dim("samples", min=1600, max=160_000)
        given, shapes, name = torch.randn(2, 8000), ({0: N, 1: samples},), "input_values"
    export(Encoder(model), (given,), path, shapes, [name], ["last_hidden_state"])


def write_merged(model, path: Path) -> None:
    """The decoder with `use_cache_branch`."""
    layers, heads, width = len(model.decoder.layers), model.decoder.layers[0].heads, model.encoder_width
    size = width // heads
    past, present = names("past_key_values", layers), names("present", layers)
    start = torch.ones(2, max(len(model.prefix), 2), dtype=torch.int64)
    first = export(
        FirstLabels(model),
        (start, torch.randn(2, 7, width)),
        path.with_name("first.onnx"),
        ({0: N, 1: NEW}, {0: N, 1: FRAMES}),
        ["input_ids", "encoder_hidden_states"],
        ["logits", *present],
    )
    cached = [torch.randn(2, heads, 5 if "decoder" in name else 7, size) for name in past]
    own = names("present", layers, ("decoder",))
    after = export(
        NextLabel(model),
        (torch.ones(2, 1, dtype=torch.int64), cached),
        path.with_name("next.onnx"),
        ({0: N}, [{0: N, 2: LENGTH if "decoder" in name else FRAMES} for name in past]),
        ["input_ids", *past],
        ["logits", *own],
    )
    outputs = ["logits", *present]
    info = onnx.helper.make_tensor_value_info
    node = onnx.helper.make_node(
        "If",
        ["use_cache_branch"],
        outputs,
        name="merged",
        then_branch=branch(after, "with cache", outputs, {n: (heads, size) for n in present if n not in own}),
        else_branch=branch(first, "without cache", outputs, {}),
    )
    inputs = [
        info("input_ids", onnx.TensorProto.INT64, ["n", "new"]),
        info("encoder_hidden_states", onnx.TensorProto.FLOAT, ["n", "frames", width]),
        *(
            info(name, onnx.TensorProto.FLOAT, ["n", heads, "length" if "decoder" in name else "frames", size])
            for name in past
        ),
        info("use_cache_branch", onnx.TensorProto.BOOL, [1]),
    ]
    graph = onnx.helper.make_graph(
        [node], "decoder", inputs, [info(name, onnx.TensorProto.FLOAT, None) for name in outputs]
    )
    merged = onnx.helper.make_model(graph, opset_imports=first.opset_import, ir_version=first.ir_version)
    merged.functions.extend({f.name: f for m in (first, after) for f in m.functions}.values())
    onnx.save(merged, path)
    for part in ("first.onnx", "next.onnx"):
        path.with_name(part).unlink()


def write_without_switch(model, path: Path) -> None:
    """The decoder as one graph that needs no `use_cache_branch` and keeps nothing of the encoder."""
    layers, heads, width = len(model.decoder.layers), model.decoder.layers[0].heads, model.encoder_width
    past, present = (names(kind, layers, ("decoder",)) for kind in ("past_key_values", "present_key_values"))
    cached = [torch.randn(2, heads, 5, width // heads) for _ in past]
    export(
        AnyLabels(model),
        (torch.ones(2, 3, dtype=torch.int64), torch.randn(2, 7, width), cached),
        path,
        ({0: N, 1: NEW}, {0: N, 1: FRAMES}, [{0: N, 2: LENGTH} for _ in past]),
        ["input_ids", "encoder_hidden_states", *past],
        ["logits", *present],
    )


def write_config(model, folder: Path) -> None:
    """config.json, tokenizer.json and preprocessor_config.json of a tiny Whisper over `WhisperWords`."""
    import tokenizers

    model.model.config.to_json_file(folder / "config.json")
    words: WhisperWords = model.tokenizer
    vocabulary = {piece: i for i, piece in enumerate(words.tokens.pieces)}
    made = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="w39"))
    made.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    made.add_special_tokens([p for p in vocabulary if p.startswith("<|")])
    made.save(str(folder / "tokenizer.json"))
    settings = {"feature_size": 80, "sampling_rate": 16_000, "hop_length": 160, "n_fft": 400}
    (folder / "preprocessor_config.json").write_text(json.dumps(settings))


PIECES = ["<blk>", "<sos/eos>", "<unk>", "▁the", "▁a", "▁c", "at", "s", "▁do", "g"]
WIDTH = 6


class TransducerEncoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(80, WIDTH)

    def forward(self, x, x_lens):
        return torch.tanh(self.net(x[:, ::4])), (x_lens + 3) // 4


class TransducerDecoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(len(PIECES), WIDTH)
        self.net = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, y):
        return self.net(self.embedding(y).flatten(1))


class Joiner(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(WIDTH, len(PIECES))

    def forward(self, encoder_out, decoder_out):
        return self.net(torch.tanh(encoder_out + decoder_out))


READS, STEP = 13, 8  # frames of a chunk, and from one to the next


class StreamingEncoder(nn.Module):
    """Keeps a sum of what it heard, with the batch second, and how many chunks there were."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(5 * 80, WIDTH)

    def forward(self, x, cached_sum, processed_lens):
        windows = torch.stack([x[:, i : i + 5].flatten(1) for i in (0, 4)], 1)  # the second reads beyond the step
        own = torch.tanh(self.net(windows)) + 0.1 * cached_sum.transpose(0, 1)
        out = own + 0.01 * processed_lens[:, None, None]
        return out, cached_sum + own.sum(1)[None], processed_lens + 1


def write_streaming_encoder(path: Path) -> nn.Module:
    torch.manual_seed(2)
    module = StreamingEncoder().eval()
    batch = torch.export.Dim("N", min=1, max=512)
    example = (torch.randn(2, READS, 80), torch.zeros(1, 2, WIDTH), torch.zeros(2, dtype=torch.int64))
    shapes = ({0: batch}, {1: batch}, {0: batch})
    torch.onnx.export(module, example, path, dynamo=True, dynamic_shapes=shapes, verbose=False)
    return module


def write_transducer(folder: Path) -> tuple[nn.Module, nn.Module, nn.Module]:
    """Encoder, decoder, joiner and tokens.txt; the modules that they were made of."""
    torch.manual_seed(1)
    parts = TransducerEncoder().eval(), TransducerDecoder().eval(), Joiner().eval()
    batch, time = torch.export.Dim("N", min=1, max=512), 4 * torch.export.Dim("time", min=2, max=500)
    examples = (
        ((torch.randn(2, 40, 80), torch.tensor([40, 40])), ({0: batch, 1: time}, {0: batch})),
        ((torch.zeros(2, 2, dtype=torch.int64),), ({0: batch},)),
        ((torch.randn(2, WIDTH), torch.randn(2, WIDTH)), ({0: batch}, {0: batch})),
    )
    for name, module, (example, shapes) in zip(("encoder", "decoder", "joiner"), parts, examples, strict=True):
        torch.onnx.export(module, example, folder / f"{name}.onnx", dynamo=True, dynamic_shapes=shapes, verbose=False)
    (folder / "tokens.txt").write_text("".join(f"{p} {i}\n" for i, p in enumerate(PIECES)), encoding="utf-8")
    return parts
