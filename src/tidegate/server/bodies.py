"""Answers: writes JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

from tidegate.server.answers_held import AnswersHeld
from tidegate.server.call import JSON
from tidegate.server.sending import WHOLE_BYTES_MAX, LargeResponse


def json_answer(content: Any, status: int = 200) -> Response:
    """Give an answer in JSON."""
    return ready_answer(msgspec.json.encode(content), JSON, status)


def ready_answer(
    content: bytes, media_type: str, status: int = 200, held: AnswersHeld | None = None
) -> Response:
    """Give an answer that is written; a large one goes in pieces, and is counted where `held` is given."""
    if len(content) <= WHOLE_BYTES_MAX:
        return Response(content, status_code=status, media_type=media_type)
    return LargeResponse(content, media_type, status, held)
