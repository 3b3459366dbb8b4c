"""Redaction of secrets in texts that are about to be written.

Secrets are found by their form (tokens of Tidegate, bearer and cookie headers, one-time codes, passwords in
settings and URLs), and by their exact text where this process knows it (`keep_secret`). Rather too much is
hidden than too little. Every pattern begins with a fixed text or has a bounded length, so that the time is
linear in the length of a line.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from urllib.parse import quote, quote_plus

HIDDEN = "[hidden]"
# Shorter ones are words rather than secrets, and hiding them would garble ordinary lines.
SECRET_CHARS_MIN = 6
VALUE_CHARS_MAX = 512
# A structure that is nested deeper, or contains itself, is written as text from here on.
DEPTH_MAX = 6

# A value as people, Python and JSON write it: in quotes to the closing one, which has an end after it (one
# inside may be escaped twice over) or is missing because the text was cut; else to the next space or mark.
_END = r"""[\s,;:&)\]}>'"\\]|$"""
_QUOTED = rf"""b?\\*(?:'(?:\\.|[^'\\\n]|'(?!{_END}))*'?|"(?:\\.|[^"\\\n]|"(?!{_END}))*"?)"""
_VALUE = rf"""(?:{_QUOTED}|[^\s&,;'"(){{}}\[\]<>]+)"""
_SEPARATOR = r"""\\*['"]?\s*[:=,]\s*"""

# Keys whose value is hidden where they occur in a structure, in a URL or in `key=value`.
SECRET_KEYS = frozenset(
    {"password", "passwd", "passphrase", "pwd", "secret", "client_secret", "token", "access_token"}
    | {"refresh_token", "api_key", "apikey", "authorization", "cookie", "set-cookie", "tidegate_session"}
    | {"proxy-authorization", "set_cookie", "proxy_authorization", "admin_token"}
)


def _keep_prefix(match: re.Match[str]) -> str:
    return f"{match[1]}{HIDDEN}"


_RULES: list[tuple[re.Pattern[str], Callable[[re.Match[str]], str]]] = [
    # Tokens of Tidegate: the id is public and useful, the rest is the secret.
    (re.compile(r"(tg_[0-9a-f]{16}_)[A-Za-z0-9_-]+"), _keep_prefix),
    # Headers: a value in quotes ends with them, one without with the line.
    (
        re.compile(rf"((?:authorization|cookie){_SEPARATOR})(?:{_QUOTED}|[^\n]+)", re.IGNORECASE),
        _keep_prefix,
    ),
    (re.compile(rf"(tidegate_session{_SEPARATOR}){_VALUE}", re.IGNORECASE), _keep_prefix),
    # `bearer token` in a sentence stays.
    (
        re.compile(r"(bearer(?:\s+|%20|\+))(?!tokens?(?:[\s.,;:)]|$))[^\s'\"<>,;\\]+", re.IGNORECASE),
        _keep_prefix,
    ),
    # The code of a one-time link; a number of three digits is an exit code.
    (
        re.compile(
            r"((?:(?<!\w)|(?<=%3f)|(?<=%26))code(?:=|%3d))(?!\d{1,3}\b)[^\s&'\"<>#),;]+", re.IGNORECASE
        ),
        _keep_prefix,
    ),
    (
        re.compile(
            rf"((?:passw(?:or)?d|passphrase|pwd|secret|api_?key)\\*['\"]?\s*[:=]\s*){_VALUE}", re.IGNORECASE
        ),
        _keep_prefix,
    ),
    # `token: wrong` in a sentence stays; `token=…` and `"token": …` are hidden.
    (re.compile(rf"(token(?:\\*['\"]\s*[:=]|=|%3d)\s*){_VALUE}", re.IGNORECASE), _keep_prefix),
    # scheme://user:password@host, up to the last @ of the word: passwords hold anything.
    (
        re.compile(rf"(://[^\s/:@]{{0,128}}:)\S{{1,{VALUE_CHARS_MAX}}}@"),
        lambda match: f"{match[1]}{HIDDEN}@",
    ),
]
# A line without one of these matches no rule; most lines need only this check.
_HINTS = re.compile(
    r"tg_|authorization|cookie|tidegate_session|bearer|code|passw|passphrase|pwd|secret|api_?key|token|://",
    re.IGNORECASE,
)


class KnownSecrets:
    """Exact secrets, in all encodings in which they may be written; any thread."""

    def __init__(self) -> None:
        self._forms: set[str] = set()
        self._pattern: re.Pattern[str] | None = None
        self._lock = threading.Lock()

    def keep(self, text: str) -> None:
        """Hide this text from now on, unless it is shorter than SECRET_CHARS_MIN."""
        if len(text) < SECRET_CHARS_MIN:
            return
        with self._lock:
            self._forms |= {text, quote(text, safe=""), quote_plus(text), quote(text)}
            self._forms |= {repr(text)[1:-1], json.dumps(text)[1:-1]}
            # The longest first: one secret may begin like another.
            longest = sorted(self._forms, key=len, reverse=True)
            self._pattern = re.compile("|".join(map(re.escape, longest)))

    def hide(self, text: str) -> str:
        """Return a text without these secrets."""
        return text if self._pattern is None else self._pattern.sub(HIDDEN, text)


_known = KnownSecrets()


def keep_secret(text: str) -> None:
    """Hide an exact text in everything that this process logs from now on."""
    _known.keep(text)


def redact(text: str) -> str:
    """Return a text without anything that is, or looks like, a secret."""
    text = _known.hide(text)
    if _HINTS.search(text) is None:
        return text
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text


def redact_value(key: str, value: object, depth: int = 0) -> object:
    """Return a value of a structured line without secrets: by its key, by its text, and inside it."""
    if key.lower() in SECRET_KEYS:
        return HIDDEN
    if value is None or isinstance(value, (bool, int, float)):
        return value
    if depth < DEPTH_MAX and isinstance(value, dict):
        return {redact(str(name)): redact_value(str(name), inner, depth + 1) for name, inner in value.items()}
    if depth < DEPTH_MAX and isinstance(value, (list, tuple, set, frozenset)):
        return [redact_value("", inner, depth + 1) for inner in value]
    return redact(str(value))
