"""Head and body of an answer leave together, over a real connection."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

from tidegate.server.http.protocol import JOINED_BYTES_MAX, JoinedWrites

Try = Callable[[JoinedWrites, asyncio.StreamReader], Awaitable[None]]


def over_a_connection(attempt: Try) -> None:
    async def run() -> None:
        ours, theirs = socket.socketpair()
        loop = asyncio.get_running_loop()
        reader, writer = await asyncio.open_connection(sock=theirs)
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=ours)
        try:
            await attempt(JoinedWrites(transport, loop), reader)
        finally:
            transport.abort()
            writer.close()

    asyncio.run(run())


def test_a_small_answer_is_one_write() -> None:
    async def attempt(answer: JoinedWrites, reader: asyncio.StreamReader) -> None:
        answer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        answer.write(b"body")
        assert await reader.read(1000) == b"HTTP/1.1 200 OK\r\n\r\nbody"

    over_a_connection(attempt)


def test_a_head_whose_body_comes_later_goes_alone() -> None:
    async def attempt(answer: JoinedWrites, reader: asyncio.StreamReader) -> None:
        answer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        assert await reader.read(1000) == b"HTTP/1.1 100 Continue\r\n\r\n", "it is not the head"
        answer.write(b"HTTP/1.1 200 OK\r\n\r\n")
        assert await reader.read(1000) == b"HTTP/1.1 200 OK\r\n\r\n"
        answer.write(b"later")
        answer.write(b" more")
        assert await reader.readexactly(10) == b"later more"

    over_a_connection(attempt)


def test_a_large_body_follows_its_head_and_closing_loses_nothing() -> None:
    async def attempt(answer: JoinedWrites, reader: asyncio.StreamReader) -> None:
        body = b"x" * (JOINED_BYTES_MAX + 1)
        answer.write(b"HEAD")
        answer.write(body)
        assert await reader.readexactly(len(body) + 4) == b"HEAD" + body

    over_a_connection(attempt)

    async def closed(answer: JoinedWrites, reader: asyncio.StreamReader) -> None:
        answer.write(b"HEAD")
        answer.close()
        assert answer.is_closing()
        assert await reader.read() == b"HEAD"

    over_a_connection(closed)
