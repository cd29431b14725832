"""`ilme serve`: domains as a service, and a page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from ilme.commands.options import FLAT
from ilme.commands.shared import ModelOptions
from ilme.serve.options import ServeOptions

OPTIONS, HOST = ServeOptions(), ModelOptions()
SHOWN = {
    "serve": (
        "domains",
        "model",
        "host",
        "port",
        "workers",
        "ray",
        "key",
        "origins",
        "adapt",
        "device",
        "format",
        "language",
        "options.queue",
        "options.longest",
        "options.log_text",
    )
}


def serve(
    domains: list[str],
    model: str = "",
    host: str = "127.0.0.1",
    port: int = 8000,
    workers: int = 1,
    ray: str = "",
    key: str = "",
    origins: list[str] | None = None,
    adapt: Path | None = None,
    models: Annotated[ModelOptions, FLAT] = HOST,
    options: ServeOptions = OPTIONS,
) -> None:
    """Serve domain folders, or a model as it is, to OpenAI's clients.

    POST /v1/audio/transcriptions takes audio as OpenAI's service does, with the name of a domain as the model. SIGTERM
    and Ctrl-C let what is under way be finished.

    Example:
        ilme serve my-domain --port 8000
        ilme serve my-domain bundled/rnnt --host 0.0.0.0 --key SECRET

    Args:
        domains: Domain folders, or models as they are; each is served under the last part of its name.
        model: Where the domains' model is now, if it has moved.
        host: Address to listen at; 0.0.0.0 lets other machines in.
        port: Port to listen at.
        workers: Processes that decode; 0 decodes in this one.
        ray: Address of a Ray cluster whose replicas decode, as many as `workers`; `local` starts one here, `auto` finds
            one.
        key: What clients must send as bearer key; the variable ILME_KEY if not given. Without either none is asked for.
        origins: Other sites whose pages may call, such as https://example.org.
        adapt: Folder for domains that clients make from text, on the page or over HTTP; those that are there are
            served, too. Without it clients cannot make any.
        models: What the models are told, and where they run.
        options: Limits, batches, time-outs.
    """
    import os

    from ilme.errors import UsageError
    from ilme.serve.adapting import made_before
    from ilme.serve.run import jobs_of
    from ilme.serve.run import serve as run

    if workers < (1 if ray else 0):
        raise UsageError(f"workers must {'be at least 1 with --ray' if ray else 'not be negative'}, got {workers}")
    jobs = jobs_of(domains, model, models.device, models.format, models.options)
    if adapt is not None:
        jobs |= made_before(adapt, jobs, models.device, models.format)
    print(f"serving {', '.join(jobs)} at http://{host}:{port}", flush=True)
    key = key or os.environ.get("ILME_KEY", "")
    if ray:
        from ilme.serve.ray_app import serve_over_ray

        at: dict[str, Any] = {"address": ray, "host": host, "port": port, "replicas": workers}
        serve_over_ray(jobs, **at, key=key, origins=origins or (), adapt=adapt, options=options)
        return
    run(jobs, host=host, port=port, workers=workers, key=key, origins=origins or (), adapt=adapt, options=options)
