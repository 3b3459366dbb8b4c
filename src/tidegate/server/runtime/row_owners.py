"""Users whose rows are written now, and users whose rows are being removed.

While the rows of a user are removed, statements that would write rows of that user are refused, whoever sends
them. The removal begins when the last statement that was let in before has ended. Belongs to the event loop.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tidegate.errors import RowsBeingRemoved

Owner = tuple[str, str]


class RowOwners:
    """The owners of rows, as tenant and user."""

    def __init__(self) -> None:
        # One removal at a time: each takes a thread that other upkeep needs, too.
        self.turn = asyncio.Lock()
        self._writing: Counter[Owner] = Counter()
        self._erasing: set[Owner] = set()
        self._waiting: dict[Owner, list[asyncio.Future[None]]] = {}

    def check(self, owner: Owner) -> None:
        """Raise RowsBeingRemoved while the rows of an owner are removed."""
        if owner in self._erasing:
            raise RowsBeingRemoved(user=owner[1])

    def begin_write(self, owner: Owner) -> None:
        """Count a statement that writes rows of an owner until `end_write`; raise RowsBeingRemoved."""
        self.check(owner)
        self._writing[owner] += 1

    def end_write(self, owner: Owner) -> None:
        """Count such a statement less."""
        self._writing[owner] -= 1
        if not self._writing[owner]:
            del self._writing[owner]
            self._wake(owner)

    @asynccontextmanager
    async def erasing(self, owner: Owner) -> AsyncIterator[None]:
        """Refuse writes of rows of an owner inside the block; of two blocks the second waits."""
        while owner in self._erasing:
            await self._next_change(owner)
        self._erasing.add(owner)
        try:
            yield
        finally:
            self._erasing.discard(owner)
            self._wake(owner)

    async def wait_idle(self, owner: Owner) -> None:
        """Wait for the end of the statements that write rows of an owner."""
        while self._writing[owner]:
            await self._next_change(owner)

    async def _next_change(self, owner: Owner) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(owner, []).append(turn)
        await turn

    def _wake(self, owner: Owner) -> None:
        for turn in self._waiting.pop(owner, ()):
            if not turn.done():
                turn.set_result(None)
