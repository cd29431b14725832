"""Errors a user can act on. Each message says what was found, what was needed and what to do next."""

from __future__ import annotations

__all__ = [
    "BadInputError",
    "CheckpointError",
    "IlmeError",
    "MissingExtraError",
    "UsageError",
    "VocabularyMismatchError",
]


class IlmeError(Exception):
    """Base of every error that is the input's fault, not the program's. The command line prints it without a trace."""


class BadInputError(IlmeError, ValueError):
    """Audio, text or an option that cannot be used."""


class UsageError(BadInputError):
    """A command was called with options it cannot work with. The command line ends with status 2."""


class VocabularyMismatchError(IlmeError, ValueError):
    """Two models that do not share one token inventory met."""


class CheckpointError(IlmeError, ValueError):
    """A model file that is missing, damaged, or of another kind."""


class MissingExtraError(IlmeError, ImportError):
    """An optional dependency is not installed."""

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(f"{package} is not installed; install it with: pip install 'ilme[{extra}]'")
        self.package, self.extra = package, extra

    def __reduce__(self) -> tuple[type, tuple[str, str]]:
        """It can travel from one process to another."""
        return type(self), (self.package, self.extra)
