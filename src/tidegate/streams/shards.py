"""The shard of a user, and the name of the user's log file.

The shard is CRC-32 (the one of zlib) of the id in UTF-8, modulo 32: the same in every process and version.
"""

from __future__ import annotations

import re
import zlib

from tidegate.errors import NameInvalid
from tidegate.model.names import shorten

SHARDS = 32  # spreads the files of a window over folders; part of the layout, never changes
USER_CHARS_MAX = 128  # an e-mail address fits, and so does the name of the file
LOG_SUFFIX = ".log"

_USER = re.compile(r"[A-Za-z0-9._@-]{1,128}")
_RULE = (
    f"The id of a stream's user is 1 to {USER_CHARS_MAX} of the letters a-z and A-Z, digits, "
    "'.', '_', '-' and '@', and neither '.' nor '..'."
)
# Not allowed in ids: the number after it says which letters are capitals.
_CAPITALS_MARK = "~"


def check_stream_user(user: str) -> str:
    """Return the id, or raise NameInvalid with what is wrong and the rule."""
    if _USER.fullmatch(user) and user not in {".", ".."}:
        return user
    reason = "it breaks the rule"
    if not user:
        reason = "it is empty"
    elif len(user) > USER_CHARS_MAX:
        reason = f"it has {len(user)} characters"
    raise NameInvalid(name=shorten(user), noun="user", reason=reason, rule=_RULE)


def shard_of(user: str) -> int:
    """Return the shard of a user: 0 to 31, never changed."""
    return zlib.crc32(user.encode()) % SHARDS


def log_name(user: str, *, ignores_case: bool) -> str:
    """Return the name of a user's file, unique per id, also on a file system that ignores case.

    There, an id with capitals is written in lower case, followed by a bit for each letter: doubling the
    letters instead could exceed the length of names in file systems.
    """
    small = user.lower()
    if not ignores_case or small == user:
        return f"{user}{LOG_SUFFIX}"
    capitals = sum(1 << place for place, letter in enumerate(user) if letter.isupper())
    return f"{small}{_CAPITALS_MARK}{capitals:x}{LOG_SUFFIX}"
