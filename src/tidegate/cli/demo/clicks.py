"""The clicks of the demo, some of them repeated as by a gateway that got no acknowledgement."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Iterator
from typing import Any

USER_NAMES = ("ada", "bob", "cleo", "dan", "eve", "finn", "gus", "hana")
FEATURES = ("map", "chart", "search", "alerts", "export")
VISITORS_MAX = 5  # people who click at one time
CLICK_SHARE = 0.08  # of the steps in which someone who visits clicks: about once a second
COME_SHARE = 0.03
GO_SHARE = 0.006
AGAIN_SHARE = 0.05  # of the steps send one of the last clicks again
REPLAY_SHARE = 0.0005  # of the steps send all of the last clicks again, as after a reboot
REMEMBERED_CLICKS = 40


def clicks(seed: int) -> Iterator[list[tuple[str, str]]]:
    """Yield the clicks (person, feature) of each step: people come, click about once a second, and leave."""
    chance = random.Random(seed)
    here: set[str] = set()
    while True:
        if len(here) < VISITORS_MAX and chance.random() < COME_SHARE:
            here.add(chance.choice(USER_NAMES))
        made = [
            (who, chance.choice(FEATURES[: 2 + len(who) % 4]))
            for who in sorted(here)
            if chance.random() < CLICK_SHARE
        ]
        here -= {who for who in sorted(here) if chance.random() < GO_SHARE}
        yield made


class ClickSource:
    """The messages of each step; some are repeated with the same id and the same time."""

    def __init__(self, seed: int, start_us: int) -> None:
        self._clicks = clicks(seed)
        self._chance = random.Random(seed)
        self._start_us = start_us
        self._count = 0
        self._last: deque[dict[str, Any]] = deque(maxlen=REMEMBERED_CLICKS)

    def step(self, now_us: int) -> list[dict[str, Any]]:
        """Return the messages of one step."""
        again = self._again()
        made = [self._message(who, feature, now_us) for who, feature in next(self._clicks)]
        self._last.extend(made)
        return made + again

    def _again(self) -> list[dict[str, Any]]:
        share = self._chance.random()
        if not self._last or share >= REPLAY_SHARE + AGAIN_SHARE:
            return []
        return list(self._last) if share < REPLAY_SHARE else [self._chance.choice(self._last)]

    def _message(self, who: str, feature: str, now_us: int) -> dict[str, Any]:
        from tidegate.model.times import format_time

        self._count += 1
        click = {"id": f"{self._start_us}-{self._count}", "who": who, "feature": feature}
        return {"key": who, "payload": click | {"at": format_time(now_us)}}
