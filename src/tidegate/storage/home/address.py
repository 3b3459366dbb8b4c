"""The address, token and certificates of the server that a process connects to.

The Python client, the command line and Spark's processes all use this, so that they find the same server.
"""

from __future__ import annotations

import functools
import os
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tidegate.errors import RequestInvalid, ServerNotRunning, ServerUntrusted, TokenMissing, TokenWrong
from tidegate.storage.home.home import Home

DEFAULT_HOME = Path("~/.tidegate")
# Set by a worker, for itself and for Spark's processes: the file with the token of pipelines. It is used for
# the home in which the file is, instead of that home's admin.token.
PIPELINE_TOKEN_VARIABLE = "TIDEGATE_PIPELINE_TOKEN_FILE"  # noqa: S105 - the name of a variable
# A process talks to one server, seldom to a few.
CONTEXTS_CACHED_MAX = 8


@dataclass(frozen=True, slots=True)
class ServerEndpoint:
    """The address of a server, the token for it, and the trusted certificates (None: the system's)."""

    url: str
    token: str = field(repr=False)
    ca_file: str | None = None
    # The file has the one certificate of the server of this home: its name does not matter then.
    pinned: bool = False

    @property
    def is_https(self) -> bool:
        """True if the server speaks TLS."""
        return self.url.startswith("https://")

    def tls_context(self) -> ssl.SSLContext:
        """Return the context that checks the server's certificate; ServerUntrusted for a file without one.

        For a plain address it is a context that trusts no certificate.
        """
        if not self.is_https:
            return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        try:
            # A file that changed is read again.
            changed_ns = Path(self.ca_file).stat().st_mtime_ns if self.ca_file else 0
            return _context(self.ca_file, changed_ns, self.pinned)
        except OSError as problem:  # an SSLError is one
            reason = f"{self.ca_file} is no file of certificates ({problem.strerror or problem})"
            raise ServerUntrusted(url=self.url, reason=reason) from problem


def find_server(
    url: str | None,
    token: str | None,
    home: str | Path | None,
    environ: Mapping[str, str] = os.environ,
    *,
    ca_file: str | Path | None = None,
) -> ServerEndpoint:
    """Return the server: as named, else from the environment, else from the home folder."""
    # A home that is named wins over the environment.
    url = url or (environ.get("TIDEGATE_URL") if home is None else None)
    token = (token or (environ.get("TIDEGATE_TOKEN") if home is None else None) or "").strip()
    trusted = str(ca_file or environ.get("TIDEGATE_CA_FILE") or "") or None
    if not token.isascii() or not token.isprintable():
        raise TokenWrong(hint="A token is plain ASCII text; this one has other characters in it.")
    if url and not url.startswith(("http://", "https://")):
        reason = f"'{url}' is not an address of a server."
        raise RequestInvalid(reason=reason, hint=f"Write http://{url}.")
    if url and token:
        return ServerEndpoint(url, token, trusted)
    if url and not _is_of_home(url, home, environ):
        # The token of a home opens everything there: it is sent to the server of that home and nobody else.
        raise TokenMissing(hint=f"Give a token for {url}: TIDEGATE_TOKEN, or connect(url, token=…).")
    folder = Path(home or environ.get("TIDEGATE_HOME") or DEFAULT_HOME).expanduser()
    if not (folder / "layout.json").exists():
        if url:
            raise TokenMissing(hint=f"Give a token with the address: {folder} has none to offer.")
        raise ServerNotRunning(url=f"the home {folder}", reason="there is no home there")
    found = Home.existing(folder)
    if url is None:
        address = found.server_address()
        if address is None:
            raise ServerNotRunning(url=f"the home {folder}", reason="no server runs there")
        url = address.url
        # The server of a home writes down its own certificate.
        if address.ca_file and not ca_file:
            return ServerEndpoint(url, token or _token_of(found, environ), address.ca_file, pinned=True)
    return ServerEndpoint(url, token or _token_of(found, environ), trusted)


def _token_of(home: Home, environ: Mapping[str, str]) -> str:
    """Return the token for the server of a home: that of pipelines in a worker, else the administrator's."""
    file = environ.get(PIPELINE_TOKEN_VARIABLE)
    if not file or Path(file).resolve() != home.pipeline_token_path.resolve():
        return home.read_token()
    try:
        return Path(file).read_text(encoding="ascii").strip()
    except FileNotFoundError as problem:
        reason = "the worker has not got a token for its pipelines yet"
        raise ServerNotRunning(url=f"the home {home.path}", reason=reason) from problem
    except (OSError, UnicodeDecodeError) as problem:
        raise TokenMissing(hint=f"{file} cannot be read: {problem}.") from problem


def _is_of_home(url: str, home: str | Path | None, environ: Mapping[str, str]) -> bool:
    folder = Path(home or environ.get("TIDEGATE_HOME") or DEFAULT_HOME).expanduser()
    if not (folder / "layout.json").exists():
        return False
    address = Home.existing(folder).server_address()
    return address is not None and address.url.rstrip("/") == url.rstrip("/")


@functools.lru_cache(maxsize=CONTEXTS_CACHED_MAX)
def _context(ca_file: str | None, changed_ns: int, pinned: bool) -> ssl.SSLContext:  # noqa: ARG001
    """Return the context for a file of certificates; the time of its change is part of the cache key."""
    context = ssl.create_default_context(cafile=ca_file)
    if pinned:
        context.check_hostname = False
    if ca_file is not None:
        # A file may have the server's own certificate rather than the one that signed it: naming the file is
        # enough to trust it. Its host name and its expiry are checked all the same.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    return context
