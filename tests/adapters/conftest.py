"""Tiny exported models, written once for all tests: exporting takes longer than testing."""

from __future__ import annotations

import pytest

from ilme.adapters.whisper import WhisperOptions
from tests.adapters.tiny import WhisperWords, tiny_moonshine, tiny_whisper


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Exporting takes long, whichever test comes first."""
    for item in items:
        if any(name.startswith("exported") for name in getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session")
def exported_moonshine(tmp_path_factory):
    """The folder of the two graphs, and the model that they were made of."""
    exports = _exports()
    folder, twin = tmp_path_factory.mktemp("moonshine"), tiny_moonshine()
    exports.write_encoder(twin, folder / "encoder_model.onnx")
    exports.write_merged(twin, folder / "decoder_model_merged.onnx")
    return folder, twin


@pytest.fixture(scope="session")
def exported_whisper(tmp_path_factory):
    """A folder as Optimum writes it, graphs in onnx/, and the model that they were made of."""
    exports = _exports()
    folder = tmp_path_factory.mktemp("whisper")
    twin = tiny_whisper(WhisperWords(languages=("en", "de")), WhisperOptions(language="de"))
    (folder / "onnx").mkdir()
    exports.write_encoder(twin, folder / "onnx" / "encoder_model.onnx")
    exports.write_merged(twin, folder / "onnx" / "decoder_model_merged.onnx")
    exports.write_config(twin, folder)
    return folder, twin


@pytest.fixture(scope="session")
def exported_transducer(tmp_path_factory):
    """A folder as icefall writes it, and the encoder, decoder and joiner that it was made of."""
    exports = _exports("onnxruntime", "onnxscript", "onnx")
    folder = tmp_path_factory.mktemp("zipformer")
    return folder, exports.write_transducer(folder)


@pytest.fixture(scope="session")
def exported_streaming(tmp_path_factory, exported_transducer):
    """The same folder with an encoder that takes states, and that encoder."""
    import shutil

    import onnx

    exports = _exports("onnxruntime", "onnxscript", "onnx")
    folder = tmp_path_factory.mktemp("streaming") / "model"
    shutil.copytree(exported_transducer[0], folder, ignore=shutil.ignore_patterns("encoder*"))
    module = exports.write_streaming_encoder(folder / "encoder.onnx")
    graph = onnx.load(folder / "encoder.onnx")
    onnx.helper.set_model_props(graph, {"T": str(exports.READS), "decode_chunk_len": str(exports.STEP)})
    onnx.save(graph, folder / "encoder.onnx")
    for left in folder.glob("encoder.onnx.data"):
        left.unlink()
    return folder, module


def _exports(*packages: str):
    for package in packages or ("transformers", "onnxruntime", "onnxscript", "onnx"):
        pytest.importorskip(package)
    from tests.adapters import onnx_exports

    return onnx_exports
