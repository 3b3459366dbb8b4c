"""Bodies: reads a request within its limits and decodes it; writes answers."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from tidegate.errors import BodyTooLarge, ContentTypeUnsupported, RequestInvalid, RequestMalformed

JSON = "application/json"
ARROW_STREAM = "application/vnd.apache.arrow.stream"

T = TypeVar("T")


async def read_json(request: Request, decoder: msgspec.json.Decoder[T], body_bytes_max: int) -> T:
    """Give the decoded body; a wrong type, too many bytes, broken JSON and wrong fields are told apart."""
    content_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if content_type != JSON:
        raise ContentTypeUnsupported(content_type=content_type or "(none)", supported=JSON)
    body = await read_body(request, body_bytes_max)
    try:
        # Raw parts of a body are skipped over, not decoded: this is what checks their text.
        body.decode("utf-8")
        return decoder.decode(body)
    except UnicodeDecodeError as problem:
        raise RequestMalformed(reason=f"not UTF-8 at byte {problem.start}") from problem
    except msgspec.ValidationError as problem:
        hint = "docs/reference/http.md shows the fields of this endpoint."
        raise RequestInvalid(reason=f"The request is not valid: {problem}.", hint=hint) from problem
    except msgspec.DecodeError as problem:
        raise RequestMalformed(reason=str(problem)) from problem
    except RecursionError as problem:
        raise RequestMalformed(reason="it is nested too deeply") from problem


async def read_body(request: Request, body_bytes_max: int) -> bytes:
    """Give the whole body, or refuse as soon as it is known to be too large."""
    declared = request.headers.get("content-length", "")
    if declared.isdigit() and int(declared) > body_bytes_max:
        raise BodyTooLarge(limit_bytes=body_bytes_max)
    parts: list[bytes] = []
    size_bytes = 0
    async for part in request.stream():
        size_bytes += len(part)
        if size_bytes > body_bytes_max:
            raise BodyTooLarge(limit_bytes=body_bytes_max)
        parts.append(part)
    return b"".join(parts)


def json_answer(content: Any, status: int = 200) -> Response:
    """Give an answer in JSON."""
    return Response(msgspec.json.encode(content), status_code=status, media_type=JSON)


def wants_arrow(request: Request) -> bool:
    """Say whether the caller asks for Arrow rather than JSON."""
    return ARROW_STREAM in request.headers.get("accept", "")
