"""The Whisper-style encoder: equal to upstream on the same weights, indifferent to padding, loadable, trainable."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ilme.adapters.openai_whisper import DIMENSIONS
from ilme.adapters.whisper_weights import load_whisper_encoder, save_whisper_encoder
from ilme.data.features import FrontendConfig
from ilme.errors import BadInputError, CheckpointError
from ilme.models import build, preset
from ilme.models.checkpoint import load_checkpoint, save_model
from ilme.models.encoder import EncoderConfig, LSTMEncoder
from ilme.models.whisper_encoder import WhisperConfig, WhisperEncoder
from ilme.tokens import Tokens

SMALL = WhisperConfig(layers=2, width=32, heads=4, mel_bins=80)


def _openai_names(encoder: WhisperEncoder) -> dict[str, torch.Tensor]:
    state = {f"encoder.{name}": value for name, value in encoder.state_dict().items()}
    return state | {"encoder.positional_embedding": encoder.positional_embedding[:1500]}


def _pt(path: Path, encoder: WhisperEncoder) -> Path:
    parameters = _openai_names(encoder) | {"decoder.ln.weight": torch.ones(3)}
    torch.save({"dims": _dims(encoder), "model_state_dict": parameters}, path)
    return path


def _dims(encoder: WhisperEncoder) -> dict[str, int]:
    names = _openai_names(encoder)
    positions, width = names["encoder.positional_embedding"].shape
    layers = len({name.split(".")[2] for name in names if ".blocks." in name})
    sizes = dict.fromkeys(DIMENSIONS, 1) | {
        "n_audio_ctx": positions,
        "n_mels": names["encoder.conv1.weight"].shape[1],
    }
    return sizes | {"n_audio_state": width, "n_text_state": width, "n_audio_layer": layers}


def _ggml(path: Path, encoder: WhisperEncoder) -> Path:
    """The parameters in float16, as whisper.cpp stores them, with no mel filters and no vocabulary."""
    data = struct.pack("<i11i2ii", 0x67676D6C, *_dims(encoder).values(), 1, 0, 0, 0)
    for name, value in _openai_names(encoder).items():
        if name.endswith(("conv1.bias", "conv2.bias")):
            value = value[:, None]
        sizes = struct.pack(f"<{value.ndim}i", *reversed(value.shape))
        data += struct.pack("<3i", value.ndim, len(name), 1) + sizes + name.encode() + value.half().numpy().tobytes()
    path.write_bytes(data)
    return path


@pytest.mark.slow
def test_equals_the_upstream_encoder_on_thirty_seconds() -> None:
    transformers = pytest.importorskip("transformers")
    from ilme.adapters.openai_whisper import rename

    torch.manual_seed(0)
    ours = WhisperEncoder(SMALL).eval()
    config = transformers.WhisperConfig(
        d_model=32, encoder_layers=2, encoder_attention_heads=4, encoder_ffn_dim=128, num_mel_bins=80
    )
    theirs = transformers.models.whisper.modeling_whisper.WhisperEncoder(config).eval()
    state = {rename(name).removeprefix("model.encoder."): value for name, value in _openai_names(ours).items()}
    assert not theirs.load_state_dict(state, strict=False).missing_keys
    x = torch.randn(2, 3000, 80)
    with torch.no_grad():
        h, lengths = ours(x, torch.tensor([3000, 3000]))
        expected = theirs(x.transpose(1, 2)).last_hidden_state
    assert lengths.tolist() == [1500, 1500]
    torch.testing.assert_close(h, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("frames", [1, 2, 37, 40])
def test_padding_changes_nothing(frames: int) -> None:
    torch.manual_seed(1)
    encoder = WhisperEncoder(SMALL).eval()
    x = torch.randn(2, 90, 80)  # what stands after an utterance's end is noise, not zeros
    with torch.no_grad():
        alone, one = encoder(x[:1, :frames], torch.tensor([frames]))
        padded, both = encoder(x, torch.tensor([frames, 90]))
    assert one.item() == both[0].item() == (frames + 1) // 2
    torch.testing.assert_close(alone[0], padded[0, : one.item()], atol=1e-5, rtol=1e-4)


def test_an_utterance_beyond_the_positions_is_refused() -> None:
    encoder = WhisperEncoder(replace(SMALL, positions=10))
    with pytest.raises(BadInputError, match=r"0\.2 s at most"):
        encoder(torch.zeros(1, 23, 80), torch.tensor([23]))


def test_weights_of_a_pt_file_and_of_its_encoder_alone(tmp_path: Path) -> None:
    torch.manual_seed(2)
    source, first, second = (WhisperEncoder(SMALL) for _ in range(3))
    file = _pt(tmp_path / "model.pt", source)
    count = load_whisper_encoder(first, file)
    assert count == sum(p.numel() for p in source.parameters())
    load_whisper_encoder(second, save_whisper_encoder(file, tmp_path / "encoder.safetensors"))
    for name, value in source.state_dict().items():
        assert torch.equal(first.state_dict()[name], value)
        assert torch.equal(second.state_dict()[name], value)


def test_weights_of_a_whisper_cpp_file(tmp_path: Path) -> None:
    torch.manual_seed(3)
    source, loaded = WhisperEncoder(SMALL), WhisperEncoder(SMALL)
    kept = save_whisper_encoder(_ggml(tmp_path / "model.bin", source), tmp_path / "encoder.safetensors")
    load_whisper_encoder(loaded, kept)
    for name, value in source.named_parameters():
        assert torch.equal(loaded.get_parameter(name), value.half().float())


def test_weights_of_another_shape_are_refused(tmp_path: Path) -> None:
    file = _pt(tmp_path / "model.pt", WhisperEncoder(SMALL))
    with pytest.raises(CheckpointError, match=r"lacks blocks\.2"):
        load_whisper_encoder(WhisperEncoder(replace(SMALL, layers=3)), file)
    with pytest.raises(CheckpointError, match="has shape"):
        load_whisper_encoder(WhisperEncoder(replace(SMALL, width=64)), file)


@pytest.mark.parametrize(
    ("config", "frames", "width"),
    [
        (EncoderConfig(features=80, layers=0, whisper=SMALL), 25, 32),
        (EncoderConfig(features=80, layers=0, projection=24, time_reduction=2, reduce_after=0, whisper=SMALL), 13, 24),
        (EncoderConfig(features=80, layers=1, hidden=20, time_reduction=3, reduce_after=0, whisper=SMALL), 9, 20),
        (EncoderConfig(features=80, layers=2, hidden=20, time_reduction=2, reduce_after=1, whisper=SMALL), 13, 20),
    ],
)
def test_lstm_layers_and_time_reduction_on_top(config: EncoderConfig, frames: int, width: int) -> None:
    encoder = LSTMEncoder(config).eval()
    h, lengths = encoder(torch.randn(2, 50, 80), torch.tensor([50, 31]))
    assert h.shape == (2, frames, width) == (2, frames, config.outputs)
    assert lengths[0] == frames


def test_a_config_that_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInputError, match="read 80 features, not 240"):
        EncoderConfig(whisper=SMALL)
    with pytest.raises(BadInputError, match="without whisper layers"):
        EncoderConfig(layers=0)


@pytest.mark.parametrize("kind", ["rnnt", "aed"])
def test_a_network_with_it_keeps_its_frontend_and_weights(kind: str, tmp_path: Path) -> None:
    tokens = Tokens(("<b>", "a", "b"), blank=0) if kind == "rnnt" else Tokens(("<eos>", "a", "b"), eos=0)
    encoder = EncoderConfig(features=80, layers=0, projection=16, time_reduction=2, reduce_after=0, whisper=SMALL)
    model = build(kind, replace(preset(kind, "tiny"), encoder=encoder), tokens).eval()
    frontend = FrontendConfig(kind="whisper", stack=1, stride=1, normalisation="none")
    loaded = load_checkpoint(save_model(tmp_path, model, frontend=frontend))
    assert loaded.frontend == frontend
    assert loaded.model.config == model.config
    x, lengths = torch.randn(1, 44, 80), torch.tensor([44])
    torch.testing.assert_close(loaded.model.encode(x, lengths)[0], model.encode(x, lengths)[0])
