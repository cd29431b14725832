"""Whether anybody speaks: Silero's voice-activity model, from its makers' package `silero-vad`, run by ONNX Runtime.

The model gives the probability of speech for every 32 ms. A recogniser that hears no speech invents some, Whisper most
of all: what holds none is not shown to it.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from ilme.data.audio import Samples, resample
from ilme.errors import MissingExtraError
from ilme.runtime.onnx import import_onnxruntime

__all__ = ["CHUNK", "RATE", "VoiceActivity"]

RATE = 16_000  # samples a second that the model hears
CHUNK = 512  # samples for each probability: 32 ms
BEFORE = 64  # samples before a chunk that are heard with it
STATE = (1, 1, 128)  # of the LSTM: its output, its cell
BLOCK = 16  # chunks of a recording that are heard in one run
SPOKEN = 0.5  # probability from which a chunk counts as speech
ENOUGH = 3  # chunks in a row that are somebody who speaks: one may be a click


class VoiceActivity:
    """The probability of speech, chunk by chunk; what it heard before counts until `reset`."""

    def __init__(self) -> None:
        onnxruntime = import_onnxruntime("serve")
        package = find_spec("silero_vad")  # its data alone: importing it sets torch's threads
        if package is None or package.origin is None:
            raise MissingExtraError("silero-vad", "serve")
        model = Path(package.origin).parent / "data" / "silero_vad_16k_sequence.onnx"
        if not model.is_file():
            raise MissingExtraError("silero-vad>=6.2.3", "serve")  # the first with this model
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        options.enable_cpu_mem_arena = False
        self._model = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
        self.reset()

    def reset(self) -> None:
        self._before = np.zeros(BEFORE, np.float32)
        self._output = self._cell = np.zeros(STATE, np.float32)

    def probabilities(self, samples: Samples) -> Samples:
        """Of the chunks (N,) of what comes next, (512 N,) at 16 kHz."""
        heard = np.concatenate([self._before, samples], dtype=np.float32)
        chunks = np.ascontiguousarray(sliding_window_view(heard, BEFORE + CHUNK)[::CHUNK])
        given = {"input": chunks, "h": self._output, "c": self._cell}
        found, self._output, self._cell = self._model.run(["speech_probs", "hn", "cn"], given)
        self._before = heard[-BEFORE:]
        return np.asarray(found, np.float32).reshape(-1)

    def is_spoken(self, samples: Samples, rate: int = RATE) -> bool:
        """Whether anybody speaks in a recording (N,); it is heard only until that is known."""
        self.reset()
        samples = resample(samples, rate, RATE)
        samples = np.pad(samples, (0, -len(samples) % CHUNK))
        in_a_row = 0
        for start in range(0, len(samples), BLOCK * CHUNK):
            for probability in self.probabilities(samples[start : start + BLOCK * CHUNK]):
                in_a_row = in_a_row + 1 if probability >= SPOKEN else 0
                if in_a_row == ENOUGH:
                    return True
        return False
