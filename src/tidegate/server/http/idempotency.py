"""Changes of the catalog with an Idempotency-Key: a repeated request gets the first answer."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from starlette.responses import Response

from tidegate.catalog.idempotency import AnswerKnown, IdempotencyKey
from tidegate.errors import IdempotencyAnswerHidden
from tidegate.server.http.request import HttpRequest
from tidegate.server.http.responses import JSON, json_answer

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class CatalogChange(Generic[R]):
    """A change of the catalog, and the answer to it; an answer with a secret is sent once and not stored."""

    run: Callable[[IdempotencyKey | None], R]
    response_of: Callable[[R], msgspec.Struct]
    status: int = 201
    is_secret: bool = False

    def stored_answer(self, result: R) -> tuple[int, bytes | None]:
        """Return the status and the body that are stored under the key."""
        return self.status, None if self.is_secret else msgspec.json.encode(self.response_of(result))


async def change_once(request: HttpRequest, change: CatalogChange[R]) -> Response:
    """Change the catalog; with an Idempotency-Key only the first time."""
    key = request.idempotency_key()
    idempotency_key = None
    if key is not None:
        idempotency_key = IdempotencyKey(
            request.principal.full_name, key, (await request.fingerprint()).hex(), change.stored_answer
        )
    try:
        result = await request.runtime.threads.catalog(change.run, idempotency_key)
    except AnswerKnown as known:
        if known.answer.body is None:
            raise IdempotencyAnswerHidden(key=key) from known
        return Response(known.answer.body, known.answer.status, media_type=JSON)
    return json_answer(change.response_of(result), change.status)
