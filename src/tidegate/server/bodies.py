"""Answers: writes JSON."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.responses import Response

JSON = "application/json"


def json_answer(content: Any, status: int = 200) -> Response:
    """Give an answer in JSON."""
    return Response(msgspec.json.encode(content), status_code=status, media_type=JSON)
