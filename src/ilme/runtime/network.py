"""Whether a place on the network answers, asked quickly: clients of hubs and registries try for half a minute."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request

__all__ = ["PATIENCE", "silent_because"]

PATIENCE = 3.0  # seconds for an answer


def silent_because(where: str) -> str:
    """Why a web address does not answer, through the proxies of the environment; empty if it does."""
    try:
        with urllib.request.urlopen(urllib.request.Request(where, method="HEAD"), timeout=PATIENCE):
            return ""
    except urllib.error.HTTPError:
        return ""  # it answers
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__
