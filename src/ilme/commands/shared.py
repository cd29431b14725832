"""Options that several commands have; none of them needs torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ilme.errors import UsageError
from ilme.runtime.formats import Format

__all__ = ["ModelOptions", "Sharing"]


@dataclass(frozen=True)
class ModelOptions:
    """What a model is told, and where it runs.

    Attributes:
        language: Language of multilingual models, such as de; Whisper also takes auto, and tells it for each window.
        prompt: Text that Whisper is told came before.
        ranks: The .tiktoken file of an OpenAI .pt; found beside it or in an installed openai-whisper otherwise.
        head: ctc searches the CTC layer of a network of `ilme train` in place of its decoder.
        device: Where everything runs.
        format: Format of the weights on a CPU: float32, float16, bfloat16 or int8.
    """

    language: str = ""
    prompt: str = ""
    ranks: str = ""
    head: str = ""
    device: str = "cpu"
    format: Format = "float32"

    @property
    def options(self) -> dict[str, Any]:
        """What was given for the model; one whose kind does not take it says so."""
        given = {"language": self.language, "prompt": self.prompt, "ranks": self.ranks, "head": self.head}
        return {name: value for name, value in given.items() if value}

    @property
    def domains(self) -> dict[str, Any]:
        """What was given for the model of a domain folder, which takes ranks alone."""
        for name in self.options:
            if name != "ranks":
                raise UsageError(f"--{name} was chosen when the domain folder was made; leave it out, or adapt again")
        return self.options


@dataclass(frozen=True)
class Sharing:
    """How many processes share the work, and where.

    Attributes:
        workers: Processes on this machine; or workers of the Ray cluster.
        ray: Address of a Ray cluster that shares the work; `local` starts one here, `auto` finds one.
    """

    workers: int = 1
    ray: str = ""
