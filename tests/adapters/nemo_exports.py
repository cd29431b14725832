"""Tiny transducers as NeMo writes them in ONNX: its module structure, its names of inputs and outputs, random weights.

The joint network has the encoder's projection inside, as NeMo's; on a CPU its logits go through a log-softmax, over the
durations too.
"""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from torch import nn

from tests.adapters.tiny import randomise

PIECES = ["<unk>", "▁the", "▁a", "▁c", "at", "s", "▁do", "g", "<blk>"]
BANDS, HEARD, HIDDEN, JOINT, LAYERS = 16, 10, 7, 6, 2


class Encoder(nn.Module):
    """Four frames are one; every frame is on its own, so that padding is not heard."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(BANDS, HEARD)

    def forward(self, audio_signal, length):
        return torch.tanh(self.net(audio_signal[:, :, ::4].transpose(1, 2))).transpose(1, 2), (length + 3) // 4


class Decoder(nn.Module):
    """The prediction network: an embedding whose blank is zeros, and an LSTM."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(len(PIECES), HIDDEN, padding_idx=len(PIECES) - 1)
        self.lstm = nn.LSTM(HIDDEN, HIDDEN, LAYERS)

    def forward(self, targets, target_length, input_states_1, input_states_2):
        y = self.embed(targets).transpose(0, 1)
        g, (h, c) = self.lstm(y, (input_states_1, input_states_2))
        return g.transpose(0, 1).transpose(1, 2), target_length + 0, h, c


class Joint(nn.Module):
    def __init__(self, durations: int) -> None:
        super().__init__()
        self.enc, self.pred = nn.Linear(HEARD, JOINT), nn.Linear(HIDDEN, JOINT)
        self.joint_net = nn.Sequential(nn.ReLU(), nn.Dropout(0.2), nn.Linear(JOINT, len(PIECES) + durations))

    def forward(self, encoder_outputs, decoder_outputs):
        f = self.enc(encoder_outputs.transpose(1, 2)).unsqueeze(2)
        g = self.pred(decoder_outputs.transpose(1, 2)).unsqueeze(1)
        return self.joint_net(f + g).log_softmax(-1)


class DecoderJoint(nn.Module):
    def __init__(self, decoder: Decoder, joint: Joint) -> None:
        super().__init__()
        self.decoder, self.joint = decoder, joint

    def forward(self, encoder_outputs, targets, target_length, input_states_1, input_states_2):
        g, lengths, h, c = self.decoder(targets, target_length, input_states_1, input_states_2)
        return self.joint(encoder_outputs, g), lengths, h, c


class Nemo:
    """The modules, and what they give."""

    def __init__(self, durations: int = 0, seed: int = 5) -> None:
        torch.manual_seed(seed)
        self.encoder, self.decoder, self.joint = Encoder().eval(), Decoder().eval(), Joint(durations).eval()
        for part in (self.encoder, self.decoder, self.joint):
            randomise(part)
        with torch.no_grad():
            self.decoder.embed.weight[-1] = 0.0

    @torch.no_grad()
    def logits(self, features, lengths, labels):
        """(B, T', U + 1, V + D) for label sequences (B, U)."""
        h, sizes = self.encoder(features.transpose(1, 2), lengths)
        first = torch.full((len(labels), 1), len(PIECES) - 1)
        zeros = torch.zeros(LAYERS, len(labels), HIDDEN)
        g = self.decoder(torch.cat([first, labels], 1), torch.ones(len(labels)), zeros, zeros)[0]
        return self.joint(h, g), sizes

    @torch.no_grad()
    def unheard(self, labels):
        """The joint's logits (B, U + 1, V + D) without the encoder's term, its bias included."""
        first = torch.full((len(labels), 1), len(PIECES) - 1)
        zeros = torch.zeros(LAYERS, len(labels), HIDDEN)
        g = self.decoder(torch.cat([first, labels], 1), torch.ones(len(labels)), zeros, zeros)[0]
        return self.joint.joint_net(self.joint.pred(g.transpose(1, 2)))


def write_nemo(folder: Path, durations: int = 0, separate: bool = False, quantise: bool = False) -> Nemo:
    """Encoder and decoder_joint with vocab.txt, or (sherpa-onnx) encoder, decoder, joiner and tokens.txt."""
    made = Nemo(durations)
    labels = {"targets": torch.ones(2, 1, dtype=torch.int32), "target_length": torch.ones(2, dtype=torch.int32)}
    heard = {"encoder_outputs": torch.randn(2, HEARD, 5)}
    batch = {name: {0: "B"} for name in labels}
    again = {f"input_states_{i}": torch.zeros(LAYERS, 2, HIDDEN) for i in (1, 2)}
    their = {f"input_states_{i}": {1: "B"} for i in (1, 2)}
    back = ["output_states_1", "output_states_2"]
    frames = {0: "B", 2: "T"}
    sound = {"audio_signal": torch.randn(2, BANDS, 40), "length": torch.tensor([40, 40])}
    export(
        made.encoder,
        sound,
        {"audio_signal": frames, "length": {0: "B"}},
        ["outputs", "encoded_lengths"],
        folder / "encoder-model.onnx",
    )
    if separate:
        names = ["outputs", "prednet_lengths", "states", "cells"]
        export(made.decoder, labels | again, batch | their, names, folder / "decoder.onnx")
        said = {"decoder_outputs": torch.randn(2, HIDDEN, 1)}
        both = {"encoder_outputs": frames, "decoder_outputs": {0: "B"}}
        export(made.joint, heard | said, both, ["outputs"], folder / "joiner.onnx")
    else:
        network, names = DecoderJoint(made.decoder, made.joint).eval(), ["outputs", "prednet_lengths", *back]
        shapes = {"encoder_outputs": frames} | batch | their
        export(network, heard | labels | again, shapes, names, folder / "decoder_joint-model.onnx")
    if quantise:
        from onnxruntime.quantization import quantize_dynamic

        for path in [p for p in folder.glob("*.onnx") if not p.name.startswith("encoder")]:
            quantize_dynamic(path, path.with_suffix(".int8.onnx"))
            path.unlink()
    inventory = "".join(f"{p} {i}\n" for i, p in enumerate(PIECES))
    (folder / ("tokens.txt" if separate else "vocab.txt")).write_text(inventory, encoding="utf-8")
    return made


def export(module, example, shapes, outputs, path):
    """By TorchScript, as NeMo does; `shapes` names the sizes that are free."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            module,
            tuple(example.values()),
            path,
            dynamo=False,
            dynamic_axes=shapes,
            input_names=list(example),
            output_names=outputs,
        )
