"""`ilme export onnx`."""

from __future__ import annotations

from pathlib import Path


def onnx(model: str, out: Path) -> None:
    """Write an RNN-T as ONNX files, for use without torch.

    The folder has icefall's layout: encoder.onnx, decoder.onnx, joiner.onnx, tokens.txt and bpe.model. It is compared
    with the model before it is written, and `ilme adapt`, `ilme transcribe` and `ilme tune` take it as a model.

    Example:
        ilme export onnx runs/rnnt rnnt-onnx

    Args:
        model: A checkpoint of `ilme train rnnt`, or bundled/rnnt; its features must be Kaldi filter banks.
        out: The folder to write; one that was exported before is replaced.
    """
    from ilme.recogniser.loading import load_model
    from ilme.workflows.export import export_onnx

    worst = export_onnx(load_model(model), out)
    size = sum(file.stat().st_size for file in out.iterdir())
    print(f"{out}: {size / 1e6:.1f} MB, numbers differ from the model's by at most {worst:.0e}")
