"""The wire under the client: finds the server, sends requests, raises the errors that the server raised."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import httpx
import msgspec

from tidegate.errors import ServerNotRunning, TidegateError, TokenMissing, from_wire

DEFAULT_HOME = Path("~/.tidegate")
ARROW_STREAM = "application/vnd.apache.arrow.stream"
TIMEOUT_SECONDS = 120.0


class Transport:
    """One connection pool to one server."""

    def __init__(self, url: str, token: str) -> None:
        self.url = url
        self._http = httpx.Client(
            base_url=url,
            headers={"Authorization": f"Bearer {token}"},
            timeout=httpx.Timeout(TIMEOUT_SECONDS, connect=5.0),
            trust_env=False,
        )

    def call(self, method: str, path: str, body: object = None) -> Any:
        """Send JSON, give the decoded answer."""
        return msgspec.json.decode(self._send(method, path, body, "application/json"))

    def call_arrow(self, method: str, path: str, body: object = None) -> bytes:
        """Send JSON, give the bytes of an Arrow stream."""
        return self._send(method, path, body, ARROW_STREAM)

    def close(self) -> None:
        """Let the connections go."""
        self._http.close()

    def _send(self, method: str, path: str, body: object, accept: str) -> bytes:
        headers = {"Accept": accept}
        content = None
        if body is not None:
            content = msgspec.json.encode(body)
            headers["Content-Type"] = "application/json"
        try:
            answer = self._http.request(method, path, content=content, headers=headers)
        except httpx.TransportError as problem:
            reason = str(problem) or type(problem).__name__
            raise ServerNotRunning(url=self.url, reason=reason) from problem
        if answer.is_success:
            return answer.content
        raise _error_of(answer)


def _error_of(answer: httpx.Response) -> TidegateError:
    try:
        return from_wire(msgspec.json.decode(answer.content))
    except (msgspec.DecodeError, AttributeError):
        return TidegateError(
            reason=f"{answer.request.url} answered {answer.status_code}: {answer.text[:200]}"
        )


def find_server(
    url: str | None, token: str | None, home: str | Path | None, environ: Mapping[str, str] = os.environ
) -> tuple[str, str]:
    """Give the address and the token: as named, else from the environment, else from the home folder."""
    url = url or (environ.get("TIDEGATE_URL") if home is None else None)
    token = token or (environ.get("TIDEGATE_TOKEN") if home is None else None)
    if url and token:
        return url, token
    from tidegate.storage.home import Home

    folder = Path(home or environ.get("TIDEGATE_HOME") or DEFAULT_HOME).expanduser()
    if not (folder / "layout.json").exists():
        if url:
            raise TokenMissing(hint=f"Give connect() a token: {folder} has none to offer.")
        raise ServerNotRunning(url=f"the home {folder}", reason="there is no home there")
    opened = Home.existing(folder)
    if url is None:
        address = opened.server_address()
        if address is None:
            raise ServerNotRunning(url=f"the home {folder}", reason="no server runs there")
        url = address.url
    return url, token or opened.read_token()
