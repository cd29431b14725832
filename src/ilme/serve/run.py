"""Runs the service until a signal ends it; what is under way is finished first."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ilme.errors import BadInputError, MissingExtraError
from ilme.recogniser.domain import CARD, Domain
from ilme.runtime.formats import Format
from ilme.serve.options import ServeOptions
from ilme.workflows.transcribe import Job

__all__ = ["jobs_of", "serve"]

HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")  # `bundled/rnnt` too
LARGEST_HEAD = 64 * 1024  # bytes of a request's headers
REALTIME: dict[str, Any] = {
    "ws_max_size": 24 * 1024 * 1024,  # bytes of a message; a few less are answered with an error
    "ws_ping_timeout": 120.0,  # seconds in which a client must answer; it is not read while its turn is finished
}
SPARE_FILES = 256  # beside connections and uploads: models, modules, pipes


def jobs_of(
    named: Sequence[str | Path],
    model: str = "",
    device: str = "cpu",
    format: Format = "float32",
    model_options: Mapping[str, object] | None = None,
) -> dict[str, Job]:
    """A job for each domain folder or model as it is, by the last part of its name.

    Args:
        named: Domain folders and models.
        model: Where the domains' model is now.
        device: Where everything runs.
        format: Format of the weights on a CPU.
        model_options: Of the models that are named themselves.
    """
    jobs: dict[str, Job] = {}
    for word in map(str, named):
        folder = Path(word)
        name = folder.resolve().name if folder.exists() else folder.name
        if name in jobs:
            raise BadInputError(f"two of them are called {name}; rename one of the folders")
        if (folder / CARD).is_file():
            Domain.read(folder).check_files(folder)
            jobs[name] = Job(word, model, device, format)
        elif folder.exists() or HUB_ID.fullmatch(word):
            jobs[name] = Job("", word, device, format, model_options=dict(model_options or {}))
        else:
            raise BadInputError(f"{word} is no domain folder (`ilme adapt` writes them) and no model")
    return jobs


def serve(
    jobs: Mapping[str, Job],
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    key: str = "",
    origins: Sequence[str] = (),
    adapt: Path | None = None,
    options: ServeOptions | None = None,
) -> None:
    """Serves domains until SIGINT or SIGTERM; requests that are under way are finished.

    Args:
        jobs: The domains by name.
        host: Address to listen at.
        port: Port to listen at.
        workers: Processes that decode; 0 decodes in this one.
        key: What clients must send; empty asks for none.
        origins: Sites whose pages may call.
        adapt: Where domains are kept that clients make from text; None makes none.
        options: Limits and batches.
    """
    try:
        import uvicorn
    except ImportError as error:
        raise MissingExtraError("uvicorn", "serve") from error

    from ilme.serve.app import create_app
    from ilme.serve.connections import PatientProtocol, allow_files
    from ilme.serve.service import Service

    options = options or ServeOptions()
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s")
    app = create_app(Service(jobs, options, workers), key=key, origins=origins, adapt=adapt)
    config = uvicorn.Config(
        app,
        host=host,
        port=port,
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=options.connections,
        h11_max_incomplete_event_size=LARGEST_HEAD,
        **REALTIME,
        timeout_keep_alive=math.ceil(options.head_timeout),
        http=partial(PatientProtocol, patience=options.head_timeout),  # type: ignore[arg-type]  # makes a protocol
    )
    allow_files(options.connections + 2 * options.queue + SPARE_FILES)
    uvicorn.Server(config).run()
