"""The base class of what travels as JSON."""

from __future__ import annotations

from typing import Any

import msgspec


class WireStruct(msgspec.Struct, rename="camel"):
    """A JSON object whose keys are the fields in camel case, in their order."""


class DeleteResponse(WireStruct):
    """The name of what was deleted."""

    deleted: str


class ErrorDetail(WireStruct):
    """The error's stable code, what happened, what to do about it, and the values in the message."""

    code: str
    message: str
    hint: str
    details: dict[str, Any]


class ErrorResponse(WireStruct):
    """The body of every error."""

    error: ErrorDetail
