"""Once: takes a request that may come again under the same key, gives the answer of the first time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from starlette.responses import Response

from tidegate.catalog.idempotency import AnswerKnown, Once
from tidegate.errors import IdempotencyAnswerHidden
from tidegate.server.http.request import Call
from tidegate.server.http.responses import JSON, json_answer

R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Making(Generic[R]):
    """Something that is made in the catalog, and how it is answered; a secret is shown once, not kept."""

    deed: Callable[[Once | None], R]
    shape: Callable[[R], msgspec.Struct]
    status: int = 201
    is_secret: bool = False

    def answer_of(self, result: R) -> tuple[int, bytes | None]:
        """Return what is kept under the key."""
        return self.status, None if self.is_secret else msgspec.json.encode(self.shape(result))


async def make_once(call: Call, making: Making[R]) -> Response:
    """Do a deed of the catalog; with an Idempotency-Key only the first time."""
    key = call.idempotency_key()
    once = None
    if key is not None:
        once = Once(call.principal.full_name, key, (await call.fingerprint()).hex(), making.answer_of)
    try:
        result = await call.running.threads.catalog(making.deed, once)
    except AnswerKnown as known:
        if known.answer.body is None:
            raise IdempotencyAnswerHidden(key=key) from known
        return Response(known.answer.body, known.answer.status, media_type=JSON)
    return json_answer(making.shape(result), making.status)
