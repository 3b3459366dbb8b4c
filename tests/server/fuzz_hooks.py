"""What the fuzzer is told: how Arrow is written and read, and whom it must not lock out."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import schemathesis
from hypothesis import strategies as st

from tidegate.model.access import ADMIN_USER
from tidegate.server.http.responses import ARROW_STREAM

KEPT_USERS = frozenset({ADMIN_USER, "fuzzer"})


def stream_of(columns: dict[str, pa.Array]) -> bytes:
    """Return an Arrow stream with one batch."""
    table = pa.table(columns)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


_payloads = st.lists(st.one_of(st.none(), st.booleans(), st.text(), st.integers()), max_size=3).map(
    json.dumps
)
_good = st.lists(_payloads, min_size=1, max_size=30).map(
    lambda texts: stream_of({"payload": pa.array(texts)})
)
_odd = st.sampled_from(
    [
        stream_of({"payload": pa.array(["{"])}),
        stream_of({"payload": pa.array([None], pa.string())}),
        stream_of({"payload": pa.array([1, 2])}),
        stream_of({"payload": pa.array(["1"]), "key": pa.array(["k"]), "partition": pa.array([0])}),
        stream_of({"payload": pa.array(["1"]), "partition": pa.array([-(2**63)])}),
        stream_of({"payload": pa.array(["1"]), "partition": pa.array([0.5])}),
        stream_of({"payload": pa.array(["1"]), "other": pa.array([0])}),
        stream_of({"payload": pa.array([["1"]])}),
        stream_of({}),
        b"",
        b"\xff\xff\xff\xff",
    ]
)


def _cut(stream: bytes, at: int, flip: int) -> bytes:
    """Damage a stream: cut it short, or change a byte of it."""
    place = at % len(stream)
    if flip == 0:
        return stream[:place]
    return stream[:place] + bytes([stream[place] ^ flip]) + stream[place + 1 :]


_damaged = st.builds(_cut, _good, st.integers(0, 10_000), st.integers(0, 255))

schemathesis.openapi.media_type(ARROW_STREAM, st.one_of(_good, _odd, _damaged, st.binary(max_size=200)))


@schemathesis.hook
def before_call(_context: schemathesis.HookContext, case: schemathesis.Case[Any], **_kwargs: Any) -> None:
    """Keep those in whose tokens the run goes on with."""
    kept = KEPT_USERS | {"reader"} if case.operation.path.endswith("/quota") else KEPT_USERS
    for name in set(case.path_parameters or {}) & {"user"}:
        if case.path_parameters[name] in kept:
            case.path_parameters[name] = "nobody"


@schemathesis.deserializer(ARROW_STREAM)
def read_arrow(_context: schemathesis.DeserializationContext, response: schemathesis.Response) -> str:
    """Read the whole stream, so that one that is cut short or damaged is a failure."""
    with pa.ipc.open_stream(response.content) as reader:
        table = reader.read_all()
    table.validate()
    return str(table.schema)
