"""Completion: what is offered where."""

from __future__ import annotations

import pytest

from tidegate.cli.commands.sql.completion import CompletionSchema, KnownNames, completions

SCHEMA = CompletionSchema(
    {"chat.messages": ["id", "text"], "chat.rooms": ["room", "topic"], "lake.readings": ["volts"]},
    ["app.answers", "app.questions"],
)


def offered(text: str, whole: str | None = None) -> list[str]:
    return [word for word, _, _ in completions(text, whole or text, SCHEMA)]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("SEL", ["SELECT"]),
        ("sel", ["select"]),
        ("SELECT * FROM cha", ["chat.messages", "chat.rooms", "chat."]),
        ("SELECT * FROM chat.", ["chat.messages", "chat.rooms"]),
        ("INSERT INTO chat.ro", ["chat.rooms"]),
        ("\\d la", ["lake.readings", "lake."]),
        ("\\d chat.m", ["chat.messages"]),
        ("SELECT m.te", []),
        ("SELECT 'chat.", []),
        ("SELECT 1; UPS", ["UPSERT"]),
        ("CONSUME FROM ", ["app.answers", "app.questions"]),
        ("CONSUME FROM app.q", ["app.questions"]),
        ("publish into app.a", ["app.answers"]),
        ("ALTER TOPIC app.", ["app.answers", "app.questions"]),
        ("SELECT 1; ACK ", ["app.answers", "app.questions"]),
        ("SHOW CONSUMER GROUPS ON app.q", ["app.questions"]),
        ("RESET CONSUMER GROUP 'g' ON app.q", ["app.questions"]),
        ("ALTER TOPIC app.answers ADD SOURCE chat.ro", ["chat.rooms"]),
        ("ALTER TOPIC app.answers ADD SOURCE chat.rooms ON INS", ["INSERT"]),
        ("CONSU", ["CONSUME", "CONSUMER"]),
    ],
)
def test_words_fit_the_place(text: str, words: list[str]) -> None:
    assert offered(text) == words


def test_columns_are_those_of_the_tables_that_the_statement_names() -> None:
    whole = "SELECT  FROM chat.messages AS m JOIN chat.rooms r ON true"
    assert offered("SELECT ", whole)[:4] == ["id", "text", "room", "topic"]
    assert offered("SELECT te", whole) == ["text"]
    assert offered("SELECT m.", whole) == ["m.id", "m.text"]
    assert offered("SELECT r.ro", whole) == ["r.room"]
    assert offered("SELECT messages.i", whole) == ["messages.id"]


def test_a_word_is_replaced_from_its_beginning() -> None:
    assert list(completions("SELECT * FROM chat.mes", "", SCHEMA)) == [("chat.messages", "table", 8)]


def test_names_are_asked_for_once_until_forgotten() -> None:
    asked: list[int] = []

    def ask() -> CompletionSchema:
        asked.append(1)
        return SCHEMA

    known = KnownNames(ask)
    assert known.now() is known.now() is SCHEMA
    known.forget()
    known.now()
    assert len(asked) == 2
