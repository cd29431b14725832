"""Tiny folders of `transformers` models that are searched frame by frame: random weights, real tokenizers."""

from __future__ import annotations

import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

import torch

from tests.adapters.tiny import randomise

LETTERS = "abcdefghijklmnopqrstuvwxyz'"
ENCODER = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "subsampling_conv_channels": 4,
    "num_mel_bins": 16,
    "conv_kernel_size": 5,
}
NEMO = {"feature_size": 16, "sampling_rate": 16_000, "hop_length": 160, "n_fft": 512, "win_length": 400}


def write_pieces(folder: Path, *, blank: str, **special: str) -> int:
    """A Parakeet tokenizer that spells words out, ▁ before each; how many ids it has, the blank last."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers.models.parakeet.tokenization_parakeet import ParakeetTokenizer

    pieces = [("<unk>", -20.0), ("▁", -3.0), *((c, -4.0) for c in LETTERS), ("▁the", -1.0), ("ll", -1.0)]
    backend = Tokenizer(models.Unigram(pieces, unk_id=0))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = ParakeetTokenizer(tokenizer_object=backend, unk_token="<unk>", pad_token=special.get("pad", blank))
    if special:
        tokenizer.add_special_tokens({"additional_special_tokens": [blank]})
    tokenizer.save_pretrained(folder)
    (folder / "preprocessor_config.json").write_text(
        json.dumps({"feature_extractor_type": "ParakeetFeatureExtractor", **NEMO})
    )
    return len(tokenizer)


def parakeet_ctc(folder: Path) -> Any:
    """Writes a folder of a tiny `ParakeetForCTC`; the model itself."""
    from transformers import ParakeetCTCConfig, ParakeetForCTC

    size = write_pieces(folder, blank="<pad>")
    config = ParakeetCTCConfig(vocab_size=size, pad_token_id=size - 1, encoder_config={**ENCODER})
    return _saved(ParakeetForCTC(config), folder)


def parakeet_transducer(folder: Path, kind: str = "RNNT") -> Any:
    """Writes a folder of a tiny `ParakeetForRNNT` or `ParakeetForTDT`; the model itself."""
    import transformers

    size = write_pieces(folder, blank="<blank>", pad="<unk>")
    config = getattr(transformers, f"Parakeet{kind}Config")(**_transducer(size), encoder_config={**ENCODER})
    return _saved(getattr(transformers, f"ParakeetFor{kind}")(config), folder)


def nemotron(folder: Path) -> Any:
    """Writes a folder of a tiny `NemotronAsrStreamingForRNNT`; the model itself."""
    from transformers import NemotronAsrStreamingConfig, NemotronAsrStreamingForRNNT

    size = write_pieces(folder, blank="<blank>", pad="<unk>")
    encoder = {**ENCODER, "sliding_window": 9, "default_num_lookahead_tokens": 1}
    config = NemotronAsrStreamingConfig(**_transducer(size), encoder_config=encoder)
    return _saved(NemotronAsrStreamingForRNNT(config), folder)


def _transducer(size: int) -> dict[str, int]:
    return {
        "vocab_size": size,
        "blank_token_id": size - 1,
        "pad_token_id": 0,
        "decoder_hidden_size": 12,
        "num_decoder_layers": 2,
    }


def wav2vec2(folder: Path, kind: str = "Wav2Vec2") -> Any:
    """Writes a folder of a tiny `Wav2Vec2ForCTC` or `HubertForCTC`, in capitals; the model itself."""
    import transformers

    pieces = ["<pad>", "<s>", "</s>", "<unk>", "|", *LETTERS.upper()]
    (folder / "vocab.json").write_text(json.dumps({p: i for i, p in enumerate(pieces)}))
    transformers.Wav2Vec2CTCTokenizer(str(folder / "vocab.json")).save_pretrained(folder)
    transformers.Wav2Vec2FeatureExtractor(return_attention_mask=False).save_pretrained(folder)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=len(pieces),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=24,
        conv_dim=(8, 8, 8),
        conv_kernel=(10, 8, 4),
        conv_stride=(8, 8, 5),
        num_conv_pos_embeddings=8,
        num_conv_pos_embedding_groups=2,
        pad_token_id=0,
    )
    return _saved(getattr(transformers, f"{kind}ForCTC")(config), folder)


def _saved(model: torch.nn.Module, folder: Path) -> Any:
    randomise(model)
    model.eval().save_pretrained(folder)  # type: ignore[operator]
    return model


def upstream_extractor(kind: str) -> Any:
    """The class of `transformers` that makes features, with filters of `transformers` where it would ask librosa."""
    import transformers
    from transformers.audio_utils import mel_filter_bank

    def mel(*, sr: int, n_fft: int, n_mels: int, fmin: float, fmax: float, norm: str) -> Any:
        filters = mel_filter_bank(n_fft // 2 + 1, n_mels, fmin, fmax, sr, norm=norm, mel_scale="slaney")
        return filters.T.astype("float32")

    name = f"transformers.models.{kind}.feature_extraction_{kind}"
    path = Path(transformers.__file__).parent / "models" / kind / f"feature_extraction_{kind}.py"
    spec = importlib.util.spec_from_file_location(f"{name}_tested", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    librosa = types.SimpleNamespace(filters=types.SimpleNamespace(mel=mel))
    before = {n: sys.modules.get(n) for n in ("librosa", spec.name)}
    sys.modules["librosa"], sys.modules[spec.name] = librosa, module  # type: ignore[assignment]
    try:
        spec.loader.exec_module(module)
    finally:
        for n, old in before.items():
            sys.modules.pop(n) if old is None else sys.modules.__setitem__(n, old)
    module.librosa = librosa  # type: ignore[attr-defined]
    return module
