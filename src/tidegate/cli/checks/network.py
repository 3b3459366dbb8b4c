"""The checks of the network: the port, TLS, and what a running server reports of its parts."""

from __future__ import annotations

import errno
import json
import re
import socket
import ssl
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from tidegate.cli.checks.finding import Finding, fail, ok, warn
from tidegate.errors import TidegateError, TlsUnusable
from tidegate.settings import ServerSettings

if TYPE_CHECKING:
    from tidegate.storage.home.address import ServerEndpoint

# A manual renewal needs time; an automatic one happens before.
CERTIFICATE_DAYS_MIN = 30
ANSWER_SECONDS_MAX = 10.0
OTHERS_READ = 0o077
PEM = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
SEQUENCE, INTEGER, EXPLICIT_VERSION, SHORT_TIME, LONG_TIME = 0x30, 0x02, 0xA0, 0x17, 0x18


def check_port(host: str, port: int, server_pid: int | None) -> Finding:
    """Check that the port is free, or used by the server of this home; name the program that uses it."""
    if port == 0:
        return ok("port", "a free one is taken at each start")
    if server_pid is not None:
        return ok("port", f"the server of this home has one, process {server_pid}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
            probe.listen(1)
        except OSError as problem:
            if problem.errno == errno.EADDRINUSE:
                other = port + 1 if port < 65_535 else 0
                fix = f"Stop it, or choose another: tidegate up --port {other}, or server.port."
                # Nothing is broken: the next start may be given another port.
                return warn("port", f"{port} on {host} is taken by {_who(port)}", fix)
            return fail(
                "port",
                f"cannot listen on {host}:{port}: {problem.strerror}",
                "Check server.host and server.port.",
            )
    return ok("port", f"{port} on {host} is free")


def holders(port: int) -> dict[int, str]:
    """Return the programs that listen on a port, by process id; those of other users are not visible."""
    import psutil

    found: dict[int, str] = {}
    try:
        connections = psutil.net_connections(kind="tcp")
    except (psutil.Error, OSError):
        return found
    for entry in connections:
        if entry.status == psutil.CONN_LISTEN and entry.laddr and entry.laddr.port == port and entry.pid:
            try:
                found[entry.pid] = " ".join(psutil.Process(entry.pid).cmdline()[:4])
            except psutil.Error:
                found[entry.pid] = ""
    return found


def _who(port: int) -> str:
    named = [
        f"process {pid} ({words})" if words else f"process {pid}" for pid, words in holders(port).items()
    ]
    return ", ".join(named) or "a program of another user"


def check_tls(settings: ServerSettings, now: datetime) -> Finding:
    """Check that certificate and key belong together, that the key is secret, and when they expire."""
    from tidegate.server.http.tls import load_tls

    if not settings.tls_certificate_file and not settings.tls_key_file:
        if _is_loopback(settings.host):
            return ok("tls", "off; the server is for this machine alone")
        found = f"off, and the server listens on {settings.host}: tokens travel in the clear"
        fix = "Set server.tls_certificate_file and server.tls_key_file, or put a proxy with TLS in front."
        return warn("tls", found, fix)
    try:
        load_tls(settings)
    except TlsUnusable as refusal:
        return fail("tls", str(refusal), refusal.hint)
    certificate = Path(settings.tls_certificate_file).expanduser()
    key = Path(settings.tls_key_file).expanduser()
    if key.stat().st_mode & OTHERS_READ:
        return fail("tls", f"others may read {key}", f"chmod 600 {key}")
    return _judge_end(
        certificate, certificate_end(certificate.read_text(encoding="utf-8", errors="replace")), now
    )


def _judge_end(certificate: Path, end: datetime | None, now: datetime) -> Finding:
    if end is None:
        return warn(
            "tls", f"the expiry date of {certificate} cannot be read", "Look at it: openssl x509 -text -in …"
        )
    days = (end - now).total_seconds() / 86_400
    date = end.strftime("%Y-%m-%d")
    fix = f"Renew {certificate}; a running server takes the new one by itself."
    if days <= 0:
        return fail("tls", f"{certificate} ended on {date}", fix)
    if days < CERTIFICATE_DAYS_MIN:
        return warn("tls", f"{certificate} ends on {date}, in {int(days)} days", fix)
    return ok("tls", f"{certificate} is valid until {date}")


def certificate_end(pem: str) -> datetime | None:
    """Return when the first of the certificates in a file expires; None where one cannot be read."""
    ends = []
    for block in PEM.findall(pem):
        try:
            ends.append(_end_of(ssl.PEM_cert_to_DER_cert(block)))
        except (ValueError, IndexError):
            return None
    return min(ends, default=None)


def _end_of(der: bytes) -> datetime:
    """Return when a certificate { TBS { [version] serial algorithm issuer validity … } } expires."""
    certificate, _ = _inside(der, SEQUENCE)
    rest, _ = _inside(certificate, SEQUENCE)
    if rest[0] == EXPLICIT_VERSION:
        _, rest = _inside(rest, EXPLICIT_VERSION)
    _, rest = _inside(rest, INTEGER)
    for _ in ("algorithm", "issuer"):
        _, rest = _inside(rest, SEQUENCE)
    validity, _ = _inside(rest, SEQUENCE)
    _, end = _inside(validity, validity[0])
    text = _inside(end, end[0])[0].decode("ascii")
    if end[0] == SHORT_TIME:  # two digits of the year: 50 and above are of the last century
        text = ("19" if text >= "50" else "20") + text
    elif end[0] != LONG_TIME:
        raise ValueError("no time")
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _inside(der: bytes, tag: int) -> tuple[bytes, bytes]:
    """Return the content of the first element, which must have this tag, and what follows it."""
    if der[0] != tag:
        raise ValueError(f"tag {der[0]:#x} where {tag:#x} is due")
    start, length = 2, der[1]
    if length & 0x80:
        start = 2 + (length & 0x7F)
        length = int.from_bytes(der[2:start], "big")
    if start + length > len(der):
        raise ValueError("cut short")
    return der[start : start + length], der[start + length :]


def check_server(found: ServerEndpoint) -> Finding:
    """Check what a running server reports of its parts."""
    from tidegate.cli.http_request import REQUEST_ERRORS, send_request

    try:
        status, body = send_request(
            "GET",
            f"{found.url.rstrip('/')}/ready",
            timeout_seconds=ANSWER_SECONDS_MAX,
            tls_context=found.tls_context(),
        )
        report = json.loads(body)
    except TidegateError as problem:
        return fail("server", str(problem), problem.hint)
    except (*REQUEST_ERRORS, ValueError) as problem:
        why = str(problem) or type(problem).__name__
        return fail(
            "server",
            f"{found.url} does not answer: {why}",
            "Look at its log, and start it again: tidegate up",
        )
    return _judge_parts(found.url, status, report)


def _judge_parts(url: str, status: int, report: object) -> Finding:
    content = report if isinstance(report, dict) else {}
    error = content.get("error") or {}
    parts = content.get("parts") or (error.get("details") or {}).get("parts") or {}
    broken = [f"{name}: {part.get('reason')}" for name, part in parts.items() if not part.get("ok")]
    if status == 200 and not broken:
        return ok("server", f"{url} is ready" + (f": {', '.join(parts)}" if parts else ""))
    why = "; ".join(broken) or error.get("message") or f"status {status}"
    return fail(
        "server", f"{url} is not ready: {why}", "Fix that part, or look at logs/server.log in the home."
    )


def _is_loopback(host: str) -> bool:
    return host in ("localhost", "::1") or host.startswith("127.")
