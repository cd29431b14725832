"""Speech out of Hugging Face `datasets`: by hub name or from a folder that `save_to_disk` wrote."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ilme.data.corpora import CorpusEntry
from ilme.errors import BadInputError, MissingExtraError
from ilme.runtime.files import write_atomically

__all__ = ["read_huggingface"]

_TEXT_COLUMNS = ("text", "sentence", "transcription", "transcript", "normalized_text", "raw_text")
_SPEAKER_COLUMNS = ("speaker", "speaker_id", "client_id")
_FORMATS = {b"RIFF": ".wav", b"fLaC": ".flac", b"OggS": ".ogg", b"ID3\x03": ".mp3", b"ID3\x04": ".mp3"}


def read_huggingface(source: str, staging: Path) -> Iterator[CorpusEntry]:
    """Utterances of a dataset; its audio is written, as it is encoded, under `staging`.

    Args:
        source: `hf:NAME[:CONFIG][:SPLIT]` for the hub, or a folder that `save_to_disk` wrote.
        staging: Folder for the audio files.
    """
    for split, table in _tables(source).items():
        columns = table.column_names
        audio_column = next((c for c in columns if type(table.features[c]).__name__ == "Audio"), None)
        text_column = next((c for c in _TEXT_COLUMNS if c in columns), None)
        if audio_column is None or text_column is None:
            raise BadInputError(
                f"{source} ({split}) has the columns {columns}; one of the type Audio is needed, and one "
                f"named {', '.join(_TEXT_COLUMNS)}"
            )
        speaker_column = next((c for c in _SPEAKER_COLUMNS if c in columns), None)
        fields_kept = [c for c in ("chapter_id", "call", "chapter", "gender", "accent") if c in columns]
        for number, row in enumerate(_undecoded(table, audio_column)):
            name = str(row["id"]) if "id" in columns else f"{split}-{number:08d}"
            speaker = row.get(speaker_column) if speaker_column else None
            fields = {key.removesuffix("_id"): str(row[key]) for key in fields_kept if row.get(key) is not None}
            yield CorpusEntry(
                name,
                _audio_file(row[audio_column], staging / split / f"{number:08d}"),
                row[text_column],
                None if speaker is None else str(speaker),
                fields={"split": split, **fields},
            )


def _tables(source: str) -> dict[str, Any]:
    try:
        import datasets
    except ImportError as error:
        raise MissingExtraError("datasets", "datasets") from error

    if not source.startswith("hf:"):
        loaded = datasets.load_from_disk(source)
        return dict(loaded) if isinstance(loaded, datasets.DatasetDict) else {"all": loaded}
    name, config, split = (*source.removeprefix("hf:").split(":"), "", "")[:3]
    loaded = datasets.load_dataset(name, config or None, split=split or None)
    return {split: loaded} if split else dict(loaded)


def _undecoded(table: Any, audio_column: str) -> Iterator[dict[str, Any]]:
    import datasets

    yield from table.cast_column(audio_column, datasets.Audio(decode=False))


def _audio_file(audio: dict[str, Any] | None, stem: Path) -> Path | None:
    """The file of an undecoded Audio value: its path, or its bytes written to `stem` with a suffix."""
    if not audio:
        return None
    path, data = audio.get("path"), audio.get("bytes")
    if data is None:
        return Path(path) if path else None
    suffix = Path(path).suffix if path else _FORMATS.get(bytes(data[:4]), ".audio")
    target = stem.with_suffix(suffix)
    write_atomically(target, data, sync=False)
    return target
