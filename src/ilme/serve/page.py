"""The page and what it asks for: static files of the package, and a recording compared with and without the domain."""

from __future__ import annotations

import asyncio
from functools import cache
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request, Response

from ilme.serve.compare import Compare
from ilme.serve.service import RequestError, Service
from ilme.serve.tasks import Failure
from ilme.serve.transcriptions import Asked
from ilme.serve.uploads import on_disk, read_form

__all__ = ["add_page"]

FOLDER = Path(__file__).parent / "static"
KINDS = {".html": "text/html", ".css": "text/css", ".js": "text/javascript"}
LONGEST = 600.0  # seconds that the page compares at once


@cache
def _file(name: str) -> bytes:
    return (FOLDER / name).read_bytes()


def add_page(app: FastAPI, service: Service) -> None:
    """Adds the page at / and its paths."""
    names = {path.name for path in FOLDER.iterdir() if path.suffix in KINDS}

    def static(name: str) -> Response:
        return Response(_file(name), media_type=f"{KINDS[Path(name).suffix]}; charset=utf-8")

    @app.get("/")
    async def page() -> Response:
        return static("index.html")

    @app.get("/page/{name}")
    async def part(name: str) -> Response:
        if name not in names:
            raise RequestError("there is no such file", 404)
        return static(name)

    @app.post("/v1/ilme/compare")
    async def compare(request: Request) -> dict[str, Any]:
        with service.admitted():
            form = await read_form(request, service.options)
            try:
                asked = Asked.read(form, service)
                async with on_disk(asked.upload) as path, asyncio.timeout(service.options.timeout):
                    recording = await service.open(path, asked.title, asked.name, asked.settings)
                    if recording.seconds > LONGEST:
                        raise RequestError(f"the page takes at most {LONGEST:.0f} s of audio", 413, "file")
                    windows = await service.windows(recording)
                    task = Compare(asked.name, service.jobs[asked.name], windows, asked.settings)
                    found = await service.run(task)
            finally:
                await form.close()
        if isinstance(found, Failure):
            raise RequestError(found.message, 500)
        return {"seconds": recording.seconds, "language": service.about[asked.name].language, **found}
