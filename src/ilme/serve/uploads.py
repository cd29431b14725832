"""Uploads: read within limits of size and time, kept in files that have no name and so are never left behind."""

from __future__ import annotations

import asyncio
import errno
import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.types import Message

from ilme.serve.options import ServeOptions
from ilme.serve.service import RequestError

__all__ = ["on_disk", "read_form"]

FIELDS = 200  # of a form
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


async def read_form(request: Request, options: ServeOptions) -> FormData:
    """The fields and the file of a multipart request; an error for one that is too large, too slow or no form."""
    most = int(options.upload_mb * 1_000_000)
    promised = request.headers.get("content-length", "0")
    if promised.isdigit() and int(promised) > most:
        raise too_large(options)
    if not request.headers.get("content-type", "").lower().startswith("multipart/form-data"):
        raise RequestError("send the audio as multipart/form-data, with the fields file and model", 415)
    came = 0

    async def receive() -> Message:
        nonlocal came
        message = await request.receive()
        came += len(message.get("body", b""))
        if came > most:
            raise too_large(options)
        return message

    counted = Request(request.scope, receive)
    try:
        async with asyncio.timeout(options.upload_timeout):
            return await counted.form(max_files=1, max_fields=FIELDS)
    except TimeoutError:
        raise RequestError(f"the upload did not come within {options.upload_timeout:.0f} s", 408) from None
    except ClientDisconnect:
        raise RequestError("the client left before its upload was complete", 400) from None
    except HTTPException as error:
        raise RequestError(f"this is no multipart form: {error.detail}", 400) from None
    except OSError as error:
        raise no_room(error) from error


def too_large(options: ServeOptions) -> RequestError:
    return RequestError(
        f"the upload is larger than {options.upload_mb:g} MB; send a compressed format (flac, mp3, ogg), or cut it",
        413,
        "file",
        {"Connection": "close"},
    )


def no_room(error: OSError) -> RequestError:
    """The upload cannot be kept."""
    if error.errno in FULL:
        return RequestError("the service has no room for the upload on its disk; try again later", 507)
    return RequestError(f"the upload cannot be kept: {error.strerror or error}", 500)


@asynccontextmanager
async def on_disk(upload: UploadFile) -> AsyncIterator[Path]:
    """A path at which the upload can be read while the block runs.

    The file was unlinked when it was made: however the service ends, nothing is left. Where a file without a name has
    no path (outside Linux), a copy has one for the time of the block.
    """
    spooled: Any = upload.file
    try:
        await asyncio.to_thread(spooled.rollover)
        async with _named(spooled) as path:
            yield path
    except OSError as error:
        raise no_room(error) from error


@asynccontextmanager
async def _named(file: Any) -> AsyncIterator[Path]:
    """A path of an open file."""
    unnamed = Path(f"/proc/self/fd/{file.fileno()}")
    if unnamed.exists():  # Linux
        yield unnamed
        return
    with tempfile.NamedTemporaryFile(prefix="ilme-upload-") as copy:
        file.seek(0)
        await asyncio.to_thread(shutil.copyfileobj, file, copy)
        copy.flush()
        yield Path(copy.name)
