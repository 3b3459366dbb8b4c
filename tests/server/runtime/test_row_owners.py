"""Writes of a user's rows and the removal of these rows exclude each other."""

from __future__ import annotations

import asyncio

import pytest

from tidegate.errors import RowsBeingRemoved
from tidegate.server.runtime.row_owners import RowOwners

ANN, BEN = ("default", "ann"), ("default", "ben")


def test_writes_are_refused_while_rows_are_removed_and_others_go_on() -> None:
    async def run() -> None:
        owners = RowOwners()
        async with owners.erasing(ANN):
            for call in (owners.begin_write, owners.check):
                with pytest.raises(RowsBeingRemoved):
                    call(ANN)
            owners.begin_write(BEN)
            owners.begin_write(("acme", "ann"))
        owners.begin_write(ANN)

    asyncio.run(run())


def test_the_removal_waits_for_the_writes_that_were_let_in() -> None:
    async def run() -> None:
        owners = RowOwners()
        owners.begin_write(ANN)
        owners.begin_write(ANN)
        async with owners.erasing(ANN):
            idle = asyncio.ensure_future(owners.wait_idle(ANN))
            owners.end_write(ANN)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            assert not idle.done()
            owners.end_write(ANN)
            await idle
            await owners.wait_idle(ANN)

    asyncio.run(run())


def test_a_second_removal_waits_for_the_first_also_where_that_fails() -> None:
    async def run() -> None:
        owners, order = RowOwners(), []

        async def second() -> None:
            async with owners.erasing(ANN):
                order.append("second")

        with pytest.raises(ZeroDivisionError):
            async with owners.erasing(ANN):
                waiting = asyncio.ensure_future(second())
                await asyncio.sleep(0)
                order.append("first")
                raise ZeroDivisionError
        await waiting
        assert order == ["first", "second"]
        owners.begin_write(ANN)

    asyncio.run(run())
