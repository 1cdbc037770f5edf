"""What a browser that sees MLflow's pages for the first time begins with: pages for training, and no assistant beside them.

MLflow keeps both in the browser's storage, which only a page of the same server can write. So the server that ``sargnn ui``
starts puts a line into the front page. What a person has chosen there stays.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, MutableMapping
from importlib.metadata import entry_points
from importlib.util import find_spec
from pathlib import Path
from typing import Any

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Message, Receive, Send], Awaitable[None]]

APP = "sargnn"
"""The name in ``[project.entry-points."mlflow.app"]`` of ``pyproject.toml``."""
STORED = {"mlflow.workflowType_v1": "machine_learning", "mlflow.assistant.fab.autoOpenedOnFirstLoad_v1": True}
_SCRIPT = (
    f"<script>for (const [key, value] of Object.entries({json.dumps(STORED)}))"
    " if (localStorage.getItem(key) === null) localStorage.setItem(key, JSON.stringify(value));</script>"
)


def app_options() -> list[str]:
    """What ``mlflow server`` is told in order to serve ``FirstVisit``; nothing where it cannot.

    It can where this package is installed with its entry points, and MLflow serves by ASGI.
    """
    spec = find_spec("mlflow")
    known = any(entry_point.name == APP for entry_point in entry_points(group="mlflow.app"))
    if not known or spec is None or spec.origin is None:
        return []
    return ["--app-name", APP] if (Path(spec.origin).parent / "server" / "fastapi_app.py").is_file() else []


class FirstVisit:
    """An ASGI application: another one, with a script at the head of its front page."""

    def __init__(self, inner: App) -> None:
        self._inner = inner

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] != "/" or scope["method"] != "GET":
            await self._inner(scope, receive, send)
            return
        # The page is read whole and unpacked: neither a copy that the browser has nor a part of it will do.
        unwanted = (b"accept-encoding", b"if-none-match", b"if-modified-since", b"range")
        wanted = [(name, value) for name, value in scope["headers"] if name.lower() not in unwanted]
        start: Message = {}
        body = bytearray()

        async def collect(message: Message) -> None:
            if message["type"] == "http.response.start":
                start.update(message)
                return
            body.extend(message.get("body", b""))
            if not message.get("more_body", False):
                page = bytes(body).replace(b"<head>", b"<head>" + _SCRIPT.encode(), 1)
                others = [
                    header
                    for header in start["headers"]
                    if header[0].lower() not in (b"content-length", b"etag", b"last-modified")
                ]
                await send({**start, "headers": [*others, (b"content-length", str(len(page)).encode())]})
                await send({"type": "http.response.body", "body": page})

        await self._inner({**scope, "headers": wanted}, receive, collect)
