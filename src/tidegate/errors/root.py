"""The base class of all errors, with their encoding for HTTP."""

from __future__ import annotations

from typing import Any, ClassVar

__all__ = ["TidegateError", "every_error", "from_wire"]

# A message names so many members of a list; the details have them all.
SHOWN_MEMBERS_MAX = 20


class TidegateError(Exception):
    """The base class of all errors of Tidegate; `str(error)` is one sentence for a person."""

    code: ClassVar[str] = "TIDEGATE_ERROR"
    status: ClassVar[int] = 500
    template: ClassVar[str] = "{reason}"
    default_hint: ClassVar[str] = ""
    retryable: ClassVar[bool] = False

    # The id of the failed request, where a client raises the error: the server's log has the same.
    request_id: str | None = None
    # Tenant, user and id of a token that was refused, for the audit trail of the server; never sent.
    token_owner: tuple[str, str, str] | None = None

    def __init__(self, *, hint: str | None = None, **values: Any) -> None:
        self.values = values
        shown = _Blank({name: _shown(value) for name, value in values.items()})
        self.hint = self.default_hint.format_map(shown) if hint is None else hint
        self.message = self.template.format_map(shown)
        super().__init__(self.message)

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.hint, self.values)

    def to_wire(self) -> dict[str, Any]:
        """Return the body of the HTTP answer."""
        error = {"code": self.code, "message": self.message, "hint": self.hint, "details": self.values}
        return {"error": error}


def _shown(value: Any) -> Any:
    """Return a value as a message shows it: a list as its first members, anything else unchanged."""
    if not isinstance(value, list | tuple):
        return value
    first = ", ".join(map(str, value[:SHOWN_MEMBERS_MAX]))
    return first if len(value) <= SHOWN_MEMBERS_MAX else f"{first} …"


class _Blank(dict[str, Any]):
    """The values of a template; a missing one is shown as such."""

    def __missing__(self, key: str) -> str:
        return f"({key} not given)"


def _rebuild(kind: type[TidegateError], hint: str, values: dict[str, Any]) -> TidegateError:
    return kind(hint=hint, **values)


def every_error(root: type[TidegateError] = TidegateError) -> list[type[TidegateError]]:
    """Return every error class in the order of the tree: a class, then its subclasses."""
    return [root, *(kind for child in root.__subclasses__() for kind in every_error(child))]


def from_wire(body: dict[str, Any]) -> TidegateError:
    """Return the error that `to_wire` encoded; an unknown code becomes a plain TidegateError."""
    error = body["error"]
    kinds = {kind.code: kind for kind in every_error()}
    kind = kinds.get(error.get("code", ""), TidegateError)
    details = dict(error.get("details") or {})
    for reserved in ("self", "hint"):  # parameters of the constructor
        details.pop(reserved, None)
    if kind is TidegateError:
        details.setdefault("reason", error.get("message", "unknown error"))
    return kind(hint=error.get("hint", ""), **details)
