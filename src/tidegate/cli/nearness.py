"""Names that were meant: takes an error about a name that is not there, adds the nearest one that is."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from tidegate.errors import (
    PipelineNotFound,
    TenantNotFound,
    TidegateError,
    TopicNotFound,
    UserNotFound,
)

if TYPE_CHECKING:
    from tidegate.cli.invocation import Invocation
    from tidegate.sdk.client import Client

DEAD_SUFFIX = ".dead"  # the first message of a topic that nobody can work on makes the topic of this name

# By kind of error: the value that holds the name, and who lists the names that are there.
Lister = Callable[["Client"], Iterable[Mapping[str, Any]]]
LISTERS: Mapping[type[TidegateError], tuple[str, Lister]] = {
    TopicNotFound: ("topic", lambda client: client.topics.list()),
    PipelineNotFound: ("pipeline", lambda client: client.pipelines.list()),
    UserNotFound: ("user", lambda client: client.users.list()),
    TenantNotFound: ("tenant", lambda client: client.tenants.list()),
}


def with_near_name(error: TidegateError, call: Invocation) -> TidegateError:
    """Give the error with the nearest name in its hint, or as it is where none is near or may be seen."""
    kind = type(error)
    if kind not in LISTERS:
        return error
    value, lister = LISTERS[kind]
    wanted = str(error.values.get(value, ""))
    # A tenant that is not there cannot be asked in.
    asker = call.without_tenant() if kind is TenantNotFound else call
    try:
        with asker.client() as client:
            names = [str(entry["name"]) for entry in lister(client)]
    except TidegateError:
        names = []  # not allowed to list them, or no server: the error stands as it is
    if kind is PipelineNotFound and not call.elsewhere:
        from tidegate.cli.installed import installed_names

        names += installed_names(call.home_path)
    origin = wanted.removesuffix(DEAD_SUFFIX)
    if kind is TopicNotFound and origin != wanted and origin in names:
        return kind(hint=f"No message of {origin} has failed for good yet.", **error.values)
    near = get_close_matches(wanted, names, n=1)
    if not near:
        return error
    return kind(hint=f"Did you mean '{near[0]}'? {error.hint}", **error.values)
