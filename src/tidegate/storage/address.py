"""Where a server answers: takes what a caller names, gives an address and a token, keeps nothing.

The Python client, the command line and Spark's processes all look here, so that they find the same server.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from tidegate.errors import RequestInvalid, ServerNotRunning, TokenMissing, TokenWrong
from tidegate.storage.home import Home

DEFAULT_HOME = Path("~/.tidegate")


def find_server(
    url: str | None, token: str | None, home: str | Path | None, environ: Mapping[str, str] = os.environ
) -> tuple[str, str]:
    """Give the address and the token: as named, else from the environment, else from the home folder."""
    url = url or (environ.get("TIDEGATE_URL") if home is None else None)
    token = (token or (environ.get("TIDEGATE_TOKEN") if home is None else None) or "").strip()
    if not token.isascii() or not token.isprintable():
        raise TokenWrong(hint="A token is plain ASCII text; this one has other characters in it.")
    if url and not url.startswith(("http://", "https://")):
        reason = f"'{url}' is not an address of a server."
        raise RequestInvalid(reason=reason, hint=f"Write http://{url}.")
    if url and token:
        return url, token
    folder = Path(home or environ.get("TIDEGATE_HOME") or DEFAULT_HOME).expanduser()
    if not (folder / "layout.json").exists():
        if url:
            raise TokenMissing(hint=f"Give a token with the address: {folder} has none to offer.")
        raise ServerNotRunning(url=f"the home {folder}", reason="there is no home there")
    opened = Home.existing(folder)
    if url is None:
        address = opened.server_address()
        if address is None:
            raise ServerNotRunning(url=f"the home {folder}", reason="no server runs there")
        url = address.url
    return url, token or opened.read_token()
