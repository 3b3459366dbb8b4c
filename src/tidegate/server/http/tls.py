"""The TLS certificate of the listener; a renewed one is loaded without a restart."""

from __future__ import annotations

import asyncio
import logging
import ssl
from pathlib import Path

from tidegate.errors import TlsUnusable
from tidegate.settings import ServerSettings
from tidegate.storage.files import write_file_atomically

# How often the files are checked for a renewal.
FOLLOW_SECONDS = 30.0
PIN_FILE = "server.pem"
PEM_START, PEM_END = b"-----BEGIN CERTIFICATE-----", b"-----END CERTIFICATE-----"

log = logging.getLogger(__name__)


class Tls:
    """The certificate in use; open connections keep the one they started with."""

    def __init__(self, certificate: Path, key: Path) -> None:
        self.certificate = certificate
        self._key = key
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.context.set_alpn_protocols(["http/1.1"])
        self._loaded_state = self._load()
        self._pin: Path | None = None

    def write_pin(self, folder: Path) -> Path:
        """Write the certificate itself, without its chain, for clients on this machine."""
        self._pin = folder / PIN_FILE
        try:
            content = self.certificate.read_bytes()
            end = content.index(PEM_END) + len(PEM_END)
            write_file_atomically(self._pin, content[content.index(PEM_START) : end] + b"\n")
        except (OSError, ValueError) as problem:
            raise TlsUnusable(reason=f"{self.certificate} cannot be copied to {self._pin}") from problem
        return self._pin

    def reload(self) -> bool:
        """Load the files again if they changed.

        A pair that does not match is refused, and the old one stays.
        """
        if self._file_states() == self._loaded_state:
            return False
        # Loaded into another context first: a failed load would mix the certificate and the key of two pairs.
        Tls(self.certificate, self._key)
        self._loaded_state = self._load()
        if self._pin is not None:
            self.write_pin(self._pin.parent)
        return True

    async def follow_files(self) -> None:
        """Load a renewed certificate when there is one, until cancelled."""
        while True:
            await asyncio.sleep(FOLLOW_SECONDS)
            try:
                if await asyncio.to_thread(self.reload):
                    log.info("renewed certificate loaded file=%s", self.certificate)
            except TlsUnusable as problem:
                log.error("renewed certificate refused, keeping the old one error=%r", str(problem))

    def _load(self) -> tuple[tuple[int, int], ...]:
        state = self._file_states()
        try:
            self.context.load_cert_chain(self.certificate, self._key, password=_no_password)
        except (ssl.SSLError, OSError, ValueError) as problem:
            reason = f"{self.certificate} and {self._key}: {problem}"
            raise TlsUnusable(reason=reason) from problem
        return state

    def _file_states(self) -> tuple[tuple[int, int], ...]:
        try:
            stats = [path.stat() for path in (self.certificate, self._key)]
        except OSError as problem:
            raise TlsUnusable(reason=f"{problem.filename} cannot be read: {problem.strerror}") from problem
        return tuple((stat.st_mtime_ns, stat.st_size) for stat in stats)


def load_tls(settings: ServerSettings) -> Tls | None:
    """Return the TLS that the settings name, or None; raise TlsUnusable for a certificate without a key."""
    certificate, key = settings.tls_certificate_file, settings.tls_key_file
    if not certificate and not key:
        return None
    if not certificate or not key:
        missing = "server.tls_key_file" if certificate else "server.tls_certificate_file"
        raise TlsUnusable(reason=f"{missing} is not set")
    return Tls(Path(certificate).expanduser().absolute(), Path(key).expanduser().absolute())


def _no_password() -> str:
    raise ValueError("the key is encrypted: store it without a password, readable by the server alone")
