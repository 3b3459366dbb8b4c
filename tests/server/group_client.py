"""What tests of consumer groups share: one member's view of a group, and a few words about messages."""

from __future__ import annotations

from typing import Any

import httpx
import msgspec

from tidegate.model.wire.groups import GroupList
from tidegate.model.wire.topics import MessagePage


class Group:
    """One member's view of a group of a topic."""

    def __init__(self, http: httpx.Client, topic: str, group: str = "g", member: str | None = None) -> None:
        self.http, self.topic, self.group, self.member = http, topic, group, member

    def ask(self, verb: str, **body: Any) -> httpx.Response:
        named: dict[str, Any] = {"group": self.group}
        if self.member is not None and verb != "reset":
            named["member"] = self.member
        return self.http.post(f"/api/v1/topics/{self.topic}/{verb}", json={**named, **body})

    def done(self, verb: str, **body: Any) -> dict[str, Any]:
        answer = self.ask(verb, **body)
        assert answer.status_code == 200, answer.text
        found: dict[str, Any] = answer.json()
        return found

    def take(self, limit: int = 100, **body: Any) -> list[dict[str, Any]]:
        answer = self.ask("consume", limit=limit, **body)
        assert answer.status_code == 200, answer.text
        msgspec.json.decode(answer.content, type=MessagePage)
        messages: list[dict[str, Any]] = answer.json()["messages"]
        return messages

    def shown(self) -> dict[str, Any]:
        answer = self.http.get(f"/api/v1/topics/{self.topic}/groups")
        msgspec.json.decode(answer.content, type=GroupList)
        found: dict[str, Any] = next(g for g in answer.json()["groups"] if g["group"] == self.group)
        return found


def publish(http: httpx.Client, topic: str, count: int, **more: Any) -> None:
    messages = [{"payload": {"n": number}, **more} for number in range(count)]
    answer = http.post(f"/api/v1/topics/{topic}/publish", json={"messages": messages})
    assert answer.status_code == 200, answer.text


def offsets(messages: list[dict[str, Any]]) -> list[int]:
    return [message["offset"] for message in messages]


def leases(messages: list[dict[str, Any]]) -> list[str]:
    return [message["lease"] for message in messages]


def code(answer: httpx.Response) -> str:
    return str(answer.json()["error"]["code"])
