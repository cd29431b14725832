"""/v1/ilme/adaptations: text in, a new domain out.

GET     /v1/ilme/adaptations       whether texts are taken, and all runs
POST    /v1/ilme/adaptations       {"name": …, "text": …, "model": …}: begins one; 202
GET     /v1/ilme/adaptations/ID    how it stands
DELETE  /v1/ilme/adaptations/ID    ends it
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

from fastapi import FastAPI, Request
from starlette.requests import ClientDisconnect

from ilme.serve.adapting import Adapter
from ilme.serve.options import ServeOptions
from ilme.serve.service import RequestError

__all__ = ["add_adapting"]

PATH = "/v1/ilme/adaptations"


def add_adapting(app: FastAPI, adapter: Adapter | None, options: ServeOptions) -> None:
    """Adds the paths; without an adapter they say that texts are not taken."""

    def switched_on() -> Adapter:
        if adapter is None:
            raise RequestError("this service takes no texts; start it with --adapt FOLDER", 403)
        return adapter

    @app.get(PATH)
    async def runs() -> dict[str, Any]:
        found = [] if adapter is None else [run.shown() for run in adapter.runs.values()]
        return {"object": "list", "enabled": adapter is not None, "megabytes": options.text_mb, "data": found}

    @app.post(PATH, status_code=202)
    async def begin(request: Request) -> dict[str, Any]:
        made = switched_on()
        asked = await _asked(request, options)
        return made.start(*(_text(asked, name) for name in ("name", "text", "model"))).shown()

    @app.get(f"{PATH}/{{key}}")
    async def state(key: str) -> dict[str, Any]:
        return switched_on().find(key).shown()

    @app.delete(f"{PATH}/{{key}}")
    async def cancel(key: str) -> dict[str, Any]:
        return (await switched_on().cancel(key)).shown()


async def _asked(request: Request, options: ServeOptions) -> dict[str, Any]:
    """The JSON of a request, within the limits. A form of another site's page cannot be JSON."""
    if request.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise RequestError("send application/json, with name, text and model", 415)
    most, read = int(options.text_mb * 1_000_000), bytearray()
    try:
        async with asyncio.timeout(options.upload_timeout):
            async for piece in request.stream():
                read += piece
                if len(read) > most:
                    close = {"Connection": "close"}
                    raise RequestError(f"at most {options.text_mb:g} MB of text are taken", 413, "text", close)
    except TimeoutError:
        raise RequestError(f"the text did not come within {options.upload_timeout:.0f} s", 408) from None
    except ClientDisconnect:
        raise RequestError("the client left before its text was complete", 400) from None
    try:
        found = json.loads(bytes(read))
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise RequestError("send a JSON object with name, text and model", 400)
    return found


def _text(asked: dict[str, Any], name: str) -> str:
    value = asked.get(name, "")
    if not isinstance(value, str):
        raise RequestError(f"{name} is a text", 400, name)
    return value
