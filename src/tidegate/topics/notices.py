"""What people are told when they change a topic."""

from __future__ import annotations


def order_notice(topic: str, before: int, after: int) -> str:
    """Say what more partitions do to the order of keys."""
    return (
        f"Topic '{topic}' has {after} partitions now, not {before}. A key may have another partition from "
        "here on: its new messages can be read before its older ones. Whoever needs the order of a key reads "
        "what was there before to its end first. Consumer groups begin the new partitions at their start."
    )
