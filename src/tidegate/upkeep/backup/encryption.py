"""Encrypted backup files: the same tar, cut into chunks that are encrypted and authenticated one by one.

    header   magic "\\x89TGBACK\\n", version (1 byte), id of the key (8 bytes), salt (32 bytes)
    chunk*   65,536 bytes of the tar, the last one 1 to 65,536; AES-256-GCM; each is followed by its tag
    nonce    number of the chunk (11 bytes, big-endian), then 1 for the last chunk, else 0
    key      HKDF-SHA256 of the key in the key file, with the salt: each file has a key of its own

Every chunk is authenticated together with the header before a byte of it is used. Its number and the mark of
the last one are in the nonce: a chunk that is missing, repeated, moved or from another file is found, and so
is a file that ends early or goes on. Whoever does not have the key can neither read a file nor make one, so
there is no signature beside it. A chunk at a time is in memory.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from tidegate.errors import BackupKeyUnusable, BackupUnusable
from tidegate.storage.files import sync_folder

MAGIC = b"\x89TGBACK\n"  # no path in a home begins with it: a tar begins with a path
VERSION = 1
KEY_BYTES = 32
KEY_ID_BYTES = 8
SALT_BYTES = 32
HEADER_BYTES = len(MAGIC) + 1 + KEY_ID_BYTES + SALT_BYTES
CHUNK_BYTES = 1 << 16
TAG_BYTES = 16
# A file of 256 TiB; AES-GCM with one key is safe for many times that.
CHUNKS_MAX = 1 << 32
_COUNTER_BYTES = 11

_KEY_TEXT = re.compile(rb"tidegate-backup-key-1:([A-Za-z0-9_-]{43})\n?")
_KEY_PREFIX = b"tidegate-backup-key-"
_KEY_FILE_BYTES_MAX = 1_024
_OTHERS = 0o077


class Writable(Protocol):
    """What takes the bytes of a file, in order."""

    def write(self, part: bytes, /) -> int:
        """Take all of it."""


class Readable(Protocol):
    """What has the bytes of a file, in order."""

    def read(self, count: int, /) -> bytes:
        """Return that many bytes, or fewer at the end."""


@dataclass(frozen=True, slots=True, repr=False)
class BackupKey:
    """The secret that encrypts and decrypts backups."""

    secret: bytes

    @property
    def id(self) -> bytes:
        """Eight bytes that identify the key and say nothing about it."""
        return _derive(self.secret, b"", b"tidegate backup key id", KEY_ID_BYTES)

    def cipher(self, salt: bytes) -> AESGCM:
        """Return the cipher of one file."""
        return AESGCM(_derive(self.secret, salt, b"tidegate backup file", KEY_BYTES))


def make_key(file: Path, secret: bytes) -> BackupKey:
    """Write a new key into a file that does not exist yet, with mode 0600, and sync it."""
    key = BackupKey(secret)
    text = _KEY_PREFIX + b"1:" + base64.urlsafe_b64encode(secret).rstrip(b"=") + b"\n"
    try:
        fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    except FileExistsError as problem:
        hint = "Choose another name: without the old key, no backup made with it can be read."
        raise BackupKeyUnusable(file=str(file), reason="it already exists", hint=hint) from problem
    except OSError as problem:
        raise BackupKeyUnusable(file=str(file), reason=problem.strerror or str(problem)) from problem
    with os.fdopen(fd, "wb") as out:
        out.write(text)
        out.flush()
        os.fsync(out.fileno())
    sync_folder(file.absolute().parent)
    return key


def read_key(file: Path) -> BackupKey:
    """Return the key in a file; raise BackupKeyUnusable for one that others may read, or that is none."""
    try:
        with file.open("rb") as stream:
            mode = os.fstat(stream.fileno()).st_mode
            content = stream.read(_KEY_FILE_BYTES_MAX)
    except OSError as problem:
        raise BackupKeyUnusable(file=str(file), reason=problem.strerror or str(problem)) from problem
    if mode & _OTHERS:
        reason = f"others may read or write it (mode {stat.S_IMODE(mode):04o})"
        hint = f"chmod 600 {file}; make another key if somebody may have read it."
        raise BackupKeyUnusable(file=str(file), reason=reason, hint=hint)
    matched = _KEY_TEXT.fullmatch(content)
    if matched is None:
        known = content.startswith(_KEY_PREFIX) and not content.startswith(_KEY_PREFIX + b"1:")
        reason = "it is a key of a newer version" if known else "it is not a key of backups"
        raise BackupKeyUnusable(file=str(file), reason=reason)
    try:
        return BackupKey(base64.urlsafe_b64decode(matched[1] + b"="))
    except binascii.Error as problem:
        raise BackupKeyUnusable(file=str(file), reason="it is not a key of backups") from problem


class EncryptingWriter:
    """Encrypts what is written to it; `end` writes the last chunk, without which the file is not complete."""

    def __init__(self, out: BinaryIO, key: BackupKey, salt: bytes) -> None:
        """`salt` is random, and never used for another file."""
        self._out = out
        self._cipher = key.cipher(salt)
        self._header = MAGIC + bytes([VERSION]) + key.id + salt
        self._pending = bytearray()
        self._number = 0
        out.write(self._header)

    def write(self, part: bytes, /) -> int:
        """Encrypt all complete chunks but the last, which may be the end."""
        self._pending += part
        at = 0
        while len(self._pending) - at > CHUNK_BYTES:
            self._seal(bytes(self._pending[at : at + CHUNK_BYTES]), is_last=False)
            at += CHUNK_BYTES
        del self._pending[:at]
        return len(part)

    def end(self) -> None:
        """Write the last chunk."""
        self._seal(bytes(self._pending), is_last=True)
        self._pending.clear()

    def _seal(self, content: bytes, *, is_last: bool) -> None:
        self._out.write(self._cipher.encrypt(_nonce(self._number, is_last=is_last), content, self._header))
        self._number += 1


class DecryptingReader:
    """Reads an encrypted file from front to back; only authenticated bytes come out."""

    def __init__(self, file: BinaryIO, key: BackupKey, name: str) -> None:
        """Raise BackupUnusable where the file is not encrypted, or not with this key."""
        self._file = file
        self._name = name
        self._header = file.read(HEADER_BYTES)
        self._cipher = key.cipher(_check_header(self._header, key, name))
        self._next = file.read(CHUNK_BYTES + TAG_BYTES)
        self._number = 0
        self._content = b""
        self._at = 0
        if not self._next:
            raise _damaged(name, "it ends after its header")

    def read(self, count: int, /) -> bytes:
        """Return that many bytes, fewer only at the end; raise BackupUnusable for a damaged chunk."""
        parts: list[bytes] = []
        left = count
        while left:
            if self._at == len(self._content) and not self._open_next():
                break
            part = self._content[self._at : self._at + left]
            self._at += len(part)
            left -= len(part)
            parts.append(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _open_next(self) -> bool:
        """Decrypt the next chunk; return False at the end."""
        if not self._next:
            return False
        sealed, self._next = self._next, self._file.read(CHUNK_BYTES + TAG_BYTES)
        place = f"chunk {self._number} is damaged, or not at its place"
        if len(sealed) <= TAG_BYTES or self._number == CHUNKS_MAX:
            raise _damaged(self._name, place)
        nonce = _nonce(self._number, is_last=not self._next)
        try:
            self._content = self._cipher.decrypt(nonce, sealed, self._header)
        except InvalidTag as problem:
            raise _damaged(self._name, place if self._next else f"{place}, or the file is cut") from problem
        self._at = 0
        self._number += 1
        return True


def open_readable(file: BinaryIO, key: BackupKey | None, name: str) -> Readable:
    """Return what reads a backup file: with a key only an encrypted one, without a key only a plain one."""
    if key is not None:
        return DecryptingReader(file, key, name)
    is_encrypted = file.read(len(MAGIC)) == MAGIC
    file.seek(0)
    if is_encrypted:
        hint = "Give the key that it was made with: --key KEYFILE. Nothing was changed."
        raise BackupUnusable(file=name, reason="it is encrypted", hint=hint)
    return file


def _check_header(header: bytes, key: BackupKey, name: str) -> bytes:
    """Return the salt of a header; raise where the file is not one for this key."""
    magic, rest = header[: len(MAGIC)], header[len(MAGIC) :]
    if magic != MAGIC:
        hint = "Leave --key away if you know who made the file. Nothing was changed."
        raise BackupUnusable(file=name, reason="it is not encrypted, and a key was given", hint=hint)
    if rest and rest[0] > VERSION:
        reason = f"its encryption has version {rest[0]}; this version knows versions up to {VERSION}"
        raise BackupUnusable(file=name, reason=reason, hint="Restore it with a newer Tidegate.")
    if len(header) != HEADER_BYTES or rest[0] != VERSION:
        raise _damaged(name, "its header is damaged")
    key_id, salt = rest[1 : 1 + KEY_ID_BYTES], rest[1 + KEY_ID_BYTES :]
    if key_id != key.id:
        reason = f"it was made with another key (id {key_id.hex()}; the one given is {key.id.hex()})"
        raise BackupUnusable(file=name, reason=reason, hint="Give the other key. Nothing was changed.")
    return salt


def _nonce(number: int, *, is_last: bool) -> bytes:
    return number.to_bytes(_COUNTER_BYTES, "big") + bytes([is_last])


def _derive(secret: bytes, salt: bytes, purpose: bytes, size_bytes: int) -> bytes:
    return HKDF(algorithm=SHA256(), length=size_bytes, salt=salt, info=purpose).derive(secret)


def _damaged(name: str, reason: str) -> BackupUnusable:
    return BackupUnusable(file=name, reason=reason)
