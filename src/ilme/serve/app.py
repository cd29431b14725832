"""The application: OpenAI's paths over the service."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from ilme.errors import MissingExtraError

try:
    from fastapi import FastAPI, Request, Response, WebSocket
    from fastapi.middleware.cors import CORSMiddleware
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException
except ImportError as error:
    raise MissingExtraError("fastapi", "serve") from error

from ilme.serve.adapting import Adapter
from ilme.serve.adapting_api import add_adapting
from ilme.serve.guard import Guard, error_body
from ilme.serve.metrics import CONTENT_TYPE
from ilme.serve.page import add_page
from ilme.serve.realtime import realtime
from ilme.serve.service import RequestError, Service
from ilme.serve.transcriptions import Asked, complete, streamed
from ilme.serve.uploads import on_disk, read_form

__all__ = ["create_app"]

LEFT = 499  # nginx's status for a client that has left: nobody reads it but the log
Result = TypeVar("Result")
log = logging.getLogger("ilme.serve")


def create_app(service: Service, *, key: str = "", origins: Sequence[str] = (), adapt: Path | None = None) -> FastAPI:
    """The application over a service, which it starts and ends.

    Args:
        service: The domains.
        key: What clients must send; empty asks for none.
        origins: Sites whose pages may call; none but the service's own by default.
        adapt: Where domains are kept that clients make from text; None makes none.
    """
    adapter = None if adapt is None else Adapter(service, adapt)

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        await service.start()
        yield
        if adapter is not None:
            await adapter.close()
        await service.close()

    app = FastAPI(title="ilme", lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)
    app.state.service = service
    _add_errors(app)
    _add_state(app, service)
    _add_transcriptions(app, service)
    add_page(app, service)
    add_adapting(app, adapter, service.options)

    @app.websocket("/v1/realtime")
    async def live(socket: WebSocket) -> None:
        await realtime(socket, service)

    paths = [route.path for route in app.routes if hasattr(route, "path")]
    if origins:
        app.add_middleware(CORSMiddleware, allow_origins=list(origins), allow_methods=["*"], allow_headers=["*"])
    app.add_middleware(Guard, metrics=service.metrics, key=key, origins=origins, paths=paths)
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(RequestError)
    async def refused(_: Request, error: RequestError) -> Response:
        return JSONResponse(error_body(str(error), error.status, error.param), error.status, error.headers)

    @app.exception_handler(HTTPException)
    async def unknown(_: Request, error: HTTPException) -> Response:
        return JSONResponse(error_body(str(error.detail), error.status_code), error.status_code, error.headers)

    @app.exception_handler(Exception)
    async def failed(_: Request, error: Exception) -> Response:
        return JSONResponse(error_body(f"a fault of the service: {type(error).__name__}", 500), 500)


def _add_state(app: FastAPI, service: Service) -> None:
    @app.api_route("/health", methods=["GET", "HEAD"])
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.api_route("/ready", methods=["GET", "HEAD"])
    async def ready() -> Response:
        missing = [name for name in service.jobs if name not in service.about]
        state = {"status": "ready" if service.ready else "failed" if service.error else "loading", "missing": missing}
        return JSONResponse(state | ({"error": service.error} if service.error else {}), 200 if service.ready else 503)

    @app.get("/metrics")
    async def metrics() -> Response:
        return Response(service.metrics.text(), media_type=CONTENT_TYPE)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [_model(service, name) for name in service.jobs]}

    @app.get("/v1/models/{name}")
    async def model(name: str) -> dict[str, Any]:
        return _model(service, service.domain(name))


def _model(service: Service, name: str) -> dict[str, Any]:
    return {"id": name, "object": "model", "created": service.created[name], "owned_by": "ilme"}


def _add_transcriptions(app: FastAPI, service: Service) -> None:
    @app.post("/v1/audio/transcriptions")
    async def transcriptions(request: Request) -> Response:
        with service.admitted():
            form = await read_form(request, service.options)
            asked = Asked.read(form, service)
            if asked.stream:
                return await streamed(service, asked, form)
            try:
                async with on_disk(asked.upload) as path:
                    return await _unless_gone(request, complete(service, asked, path))
            finally:
                await form.close()

    @app.post("/v1/audio/translations")
    async def translations() -> Response:
        raise RequestError(
            "this service does not translate; it writes what is said: POST /v1/audio/transcriptions", 404
        )


async def _unless_gone(request: Request, work: Coroutine[Any, Any, Result]) -> Result | Response:
    """The result; if the client leaves before it is there, the work is cancelled."""
    doing = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_left(request))
    try:
        await asyncio.wait({doing, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if doing.done():
            return doing.result()
        return Response(status_code=LEFT)
    finally:
        for task in (doing, leaving):
            task.cancel()
            with suppress(asyncio.CancelledError, Exception):
                await task


async def _left(request: Request) -> None:
    """Returns when the client has closed its connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
