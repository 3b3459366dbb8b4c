"""Names of topics, tables, pipelines, users and tenants: checked once at the door, then plain text."""

from __future__ import annotations

import re

from tidegate.errors import NameInvalid

TOPIC_NAME_CHARS_MAX = 200  # leaves room for suffixes within the 255 bytes of a file name
TOPIC_SEGMENTS_MAX = 4  # tenant, namespace, table and one more; deeper trees are paths, not names
# The end of the name of a dead letter topic. It is not counted in the limits above, so that every topic can
# have one.
DEAD_SUFFIX = ".dead"
TABLE_NAME_CHARS_MAX = 63  # what PostgreSQL keeps of an identifier, so names survive a move there
PIPELINE_NAME_CHARS_MAX = 63  # also the name of a file and of a Spark query
SHOWN_CHARS_MAX = 80  # an error repeats no more than this of what a caller sent

_TOPIC_SEGMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")
_TABLE = re.compile(r"[a-z_][a-z0-9_]*")
_PIPELINE = re.compile(r"[a-z][a-z0-9_-]*")

_TOPIC_RULE = (
    f"A topic name is 1 to {TOPIC_SEGMENTS_MAX} segments joined by '.', "
    f"{TOPIC_NAME_CHARS_MAX} characters at most; a segment has letters a-z and A-Z, digits, '_' and '-', "
    f"and begins with a letter or '_'. A last segment '{DEAD_SUFFIX}' comes on top."
)
_TABLE_RULE = (
    f"A table name has small letters a-z, digits and '_', begins with a letter or '_', "
    f"and is {TABLE_NAME_CHARS_MAX} characters at most."
)
_PIPELINE_RULE = (
    f"A pipeline name has small letters a-z, digits, '_' and '-', begins with a letter, "
    f"and is {PIPELINE_NAME_CHARS_MAX} characters at most."
)


def check_topic_name(name: str) -> str:
    """Return the name, or raise NameInvalid with what is wrong and the rule."""
    is_dead = name.endswith(DEAD_SUFFIX)
    chars_max = TOPIC_NAME_CHARS_MAX + (len(DEAD_SUFFIX) if is_dead else 0)
    _check_length(name, "topic", chars_max, _TOPIC_RULE)
    segments = name.split(".")
    if len(segments) > TOPIC_SEGMENTS_MAX + is_dead:
        raise _invalid(name, "topic", f"it has {len(segments)} segments", _TOPIC_RULE)
    for segment in segments:
        if not segment:
            raise _invalid(name, "topic", "a segment is empty", _TOPIC_RULE)
        if not _TOPIC_SEGMENT.fullmatch(segment):
            raise _invalid(name, "topic", f"segment '{shorten(segment)}' breaks the rule", _TOPIC_RULE)
    return name


def check_table_name(name: str) -> str:
    """Return the name, or raise NameInvalid with what is wrong and the rule."""
    _check_length(name, "table", TABLE_NAME_CHARS_MAX, _TABLE_RULE)
    if not _TABLE.fullmatch(name):
        raise _invalid(name, "table", _first_fault(name, _TABLE), _TABLE_RULE)
    return name


def check_pipeline_name(name: str) -> str:
    """Return the name, or raise NameInvalid with what is wrong and the rule."""
    _check_length(name, "pipeline", PIPELINE_NAME_CHARS_MAX, _PIPELINE_RULE)
    if not _PIPELINE.fullmatch(name):
        raise _invalid(name, "pipeline", _first_fault(name, _PIPELINE), _PIPELINE_RULE)
    return name


def shorten(text: str, chars_max: int = SHOWN_CHARS_MAX) -> str:
    """Return text as an error may repeat it: whole when short, else its beginning and an ellipsis."""
    return text if len(text) <= chars_max else text[: chars_max - 1] + "…"


def escape_surrogates(text: str) -> str:
    """Return text with escapes for lone surrogates: texts of errors may have them, and UTF-8 has none."""
    return text.encode("utf-8", "backslashreplace").decode()


def _check_length(name: str, noun: str, chars_max: int, rule: str) -> None:
    if not name:
        raise _invalid(name, noun, "it is empty", rule)
    if len(name) > chars_max:
        raise _invalid(name, noun, f"it has {len(name)} characters", rule)


def _first_fault(name: str, pattern: re.Pattern[str]) -> str:
    matched = pattern.match(name)
    fault = name[matched.end() if matched else 0]
    return f"{fault!r} is not allowed there" if matched else f"it may not begin with {fault!r}"


def _invalid(name: str, noun: str, reason: str, rule: str) -> NameInvalid:
    return NameInvalid(name=shorten(name), noun=noun, reason=reason, rule=rule)


USER_NAME_CHARS_MAX = 128  # an e-mail address fits
TENANT_NAME_CHARS_MAX = 63  # also the name of a folder, and of a label in a host name

_USER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._@-]*")
_TENANT = re.compile(r"[a-z][a-z0-9-]*")
_OWNER = re.compile(r"[A-Za-z0-9._@-]{1,128}")
_OWNER_RULE = (
    "It has 1 to 128 of the letters a-z and A-Z, digits, '.', '_', '-' and '@', and is not '.' or '..'."
)
_USER_RULE = (
    "A user name has letters a-z and A-Z, digits, '.', '_', '@' and '-', begins with a letter or a digit, "
    f"and is {USER_NAME_CHARS_MAX} characters at most."
)
_TENANT_RULE = (
    "A tenant name has small letters a-z, digits and '-', begins with a letter, "
    f"and is {TENANT_NAME_CHARS_MAX} characters at most."
)


def check_user_name(name: str) -> str:
    """Return the name, or raise NameInvalid with what is wrong and the rule."""
    if not is_user_name(name):
        raise _invalid_account_name(name, "user", USER_NAME_CHARS_MAX, _USER_RULE)
    return name


def check_tenant_name(name: str) -> str:
    """Return the name, or raise NameInvalid with what is wrong and the rule."""
    if not is_tenant_name(name):
        raise _invalid_account_name(name, "tenant", TENANT_NAME_CHARS_MAX, _TENANT_RULE)
    return name


def check_row_owner(name: str) -> str:
    """Return the name if rows can belong to it, or raise NameInvalid; every user's name is one.

    The users of an application need no account here: their ids are owners, too.
    """
    if not _OWNER.fullmatch(name) or name in (".", ".."):
        raise _invalid_account_name(name, "user", USER_NAME_CHARS_MAX, _OWNER_RULE)
    return name


def is_user_name(name: str) -> bool:
    """Return whether a user can have this name."""
    return len(name) <= USER_NAME_CHARS_MAX and _USER.fullmatch(name) is not None


def is_tenant_name(name: str) -> bool:
    """Return whether a tenant can have this name."""
    return len(name) <= TENANT_NAME_CHARS_MAX and _TENANT.fullmatch(name) is not None


def _invalid_account_name(name: str, noun: str, chars_max: int, rule: str) -> NameInvalid:
    reason = "it breaks the rule"
    if not name:
        reason = "it is empty"
    elif len(name) > chars_max:
        reason = f"it has {len(name)} characters"
    return NameInvalid(name=shorten(name), noun=noun, reason=reason, rule=rule)
