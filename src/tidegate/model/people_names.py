"""Names of users and tenants: checked once at the door, then plain text everywhere."""

from __future__ import annotations

import re

from tidegate.errors import NameInvalid
from tidegate.model.names import shorten

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
    """Give the name back, or raise NameInvalid with what is wrong and the rule."""
    if not is_user_name(name):
        raise _invalid(name, "user", USER_NAME_CHARS_MAX, _USER_RULE)
    return name


def check_tenant_name(name: str) -> str:
    """Give the name back, or raise NameInvalid with what is wrong and the rule."""
    if not is_tenant_name(name):
        raise _invalid(name, "tenant", TENANT_NAME_CHARS_MAX, _TENANT_RULE)
    return name


def check_row_owner(name: str) -> str:
    """Give the name back if rows can belong to it, or raise NameInvalid; every user's name is one.

    Rows of an application's own users need no account here: their ids are owners, too.
    """
    if not _OWNER.fullmatch(name) or name in (".", ".."):
        raise _invalid(name, "user", USER_NAME_CHARS_MAX, _OWNER_RULE)
    return name


def is_user_name(name: str) -> bool:
    """Say whether a user can have this name."""
    return len(name) <= USER_NAME_CHARS_MAX and _USER.fullmatch(name) is not None


def is_tenant_name(name: str) -> bool:
    """Say whether a tenant can have this name."""
    return len(name) <= TENANT_NAME_CHARS_MAX and _TENANT.fullmatch(name) is not None


def _invalid(name: str, noun: str, chars_max: int, rule: str) -> NameInvalid:
    reason = "it breaks the rule"
    if not name:
        reason = "it is empty"
    elif len(name) > chars_max:
        reason = f"it has {len(name)} characters"
    return NameInvalid(name=shorten(name), noun=noun, reason=reason, rule=rule)
