"""Which statements may be sent twice."""

from __future__ import annotations

import traceback
from typing import Any

import pytest

import tidegate
from tests.sdk.faults import Say, faulty_server
from tidegate.errors import RequestInvalid, ServerNotRunning, SqlInvalid
from tidegate.sdk.statements import first_word, only_reads, returns_rows

ANSWER = Say(content=b'{"columns": [], "rows": [], "rowCount": 3, "tookMs": 1}')


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT 1",
        "  -- first\n/* INSERT */ (select 'DELETE', \"drop\" from x)",
        "WITH a AS (SELECT 1) SELECT * FROM a",
        "FROM chat.messages",
        "VALUES (1)",
        "SHOW TABLES; DESCRIBE TABLE chat.messages;",
        "EXPLAIN SELECT 1",
        "SELECT $$; DELETE FROM x$$, $t$ $$ $t$, E'\\'; DELETE', $1",
    ],
)
def test_what_only_reads_is_known(sql: str) -> None:
    assert only_reads(sql)


@pytest.mark.parametrize(
    "sql",
    [
        "INSERT INTO x VALUES (1)",
        "UPSERT INTO x VALUES (1)",
        "WITH a AS (SELECT 1) INSERT INTO b SELECT * FROM a",
        "EXPLAIN DELETE FROM x",
        "EXECUTE AS 'ann' (DELETE FROM x)",
        "SELECT 1; DROP TABLE x",
        "SELECT E'\\'' ; INSERT INTO x VALUES ('a')",
        "SELECT 'a'';'; DELETE FROM x WHERE a = ''''",
        "SELECT $a$ $$ $a$; DELETE FROM x; SELECT $$ $$",
        "SELECT 'open; ",
        "SELECT $x$ open",
        "COPY x TO 'y'",
        "?",
        "SELECT /* a /* b */ ' */ 1; DROP TABLE x; -- '",
        "SELECT 1; -- note\r DROP TABLE x",
        "SELECT a$b$; DROP TABLE x; SELECT c$b$",
    ],
)
def test_what_may_write_or_cannot_be_read_is_not_taken_for_reading(sql: str) -> None:
    assert not only_reads(sql)


def test_the_first_word_is_found_behind_comments_and_brackets() -> None:
    assert first_word("/* a */ -- b\n ( select 1)") == "SELECT"
    assert first_word("'text'") == ""


def test_a_lost_answer_is_asked_for_again_only_where_that_is_safe() -> None:
    with faulty_server("drop", ANSWER) as faulty, tidegate.connect(faulty.url, token="t") as client:
        assert client.sql("SELECT 1").row_count == 3
        assert len(faulty.seen) == 2
    with faulty_server("drop", ANSWER) as faulty, tidegate.connect(faulty.url, token="t") as client:
        with pytest.raises(ServerNotRunning):
            client.sql("DELETE FROM app.t")
        assert len(faulty.seen) == 1
    with faulty_server("drop", ANSWER, "drop", ANSWER) as faulty:
        with tidegate.connect(faulty.url, token="t") as client:
            client.sql("DELETE FROM app.t", idempotency_key="k-1")
            assert client.insert("app.t", [{"a": 1}], idempotency_key="k-2") == 3
        assert [seen.headers["idempotency-key"] for seen in faulty.seen] == ["k-1", "k-1", "k-2", "k-2"]


def test_an_answer_of_a_statement_that_writes_is_not_asked_for_again_as_arrow() -> None:
    with faulty_server(ANSWER) as faulty, tidegate.connect(faulty.url, token="t") as client:
        answer = client.sql("INSERT INTO app.t VALUES (1)")
        with pytest.raises(RequestInvalid, match="a second time"):
            answer.to_arrow()
        assert len(faulty.seen) == 1


@pytest.mark.parametrize(
    ("params", "told"),
    [("abc", "one text"), ({"id": 1}, "a dictionary"), ({1, 2}, "a set"), (1, "one value"), (0, "one value")],
)
def test_parameters_that_are_no_list_are_refused(params: Any, told: str) -> None:
    with faulty_server(ANSWER) as faulty, tidegate.connect(faulty.url, token="t") as client:
        for ask in (client.sql, client.sql_arrow, client.subscribe):
            with pytest.raises(RequestInvalid, match=f"not {told}"):
                ask("SELECT ?", params)
        assert faulty.seen == []


def test_what_gives_no_rows_is_not_sent_for_arrow() -> None:
    with faulty_server(ANSWER) as faulty, tidegate.connect(faulty.url, token="t") as client:
        for sql in ("INSERT INTO app.t VALUES (1)", "EXECUTE AS 'ann' (DELETE FROM app.t)", "DROP TABLE a.b"):
            with pytest.raises(RequestInvalid, match="it was not run"):
                client.sql_arrow(sql)
        with pytest.raises(RequestInvalid, match="one statement"):
            client.sql_arrow("SELECT 1; SELECT 2")
        assert faulty.seen == []


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT merge FROM a.b; -- end",
        "SELECT ';'",
        "WITH a AS (SELECT 1) FROM a",
        "EXECUTE AS 'a' (SELECT 1)",
        "EXPLAIN DELETE FROM a.b",
    ],
)
def test_one_statement_that_reads_gives_rows(sql: str) -> None:
    assert returns_rows(sql)


def test_the_answer_of_a_script_is_no_arrow_table() -> None:
    one = b'{"columns": [], "rows": [], "rowCount": 0}'
    said = Say(content=one[:-1] + b', "tookMs": 1, "results": [' + one + b"," + one + b"]}")
    with faulty_server(said) as faulty, tidegate.connect(faulty.url, token="t") as client:
        with pytest.raises(RequestInvalid, match="several statements") as caught:
            client.sql("SELECT 1; SELECT 2").to_arrow()
        assert "sql_arrow" not in caught.value.hint
        assert len(faulty.seen) == 1


def test_a_traceback_tells_the_hint_of_what_the_server_refused() -> None:
    refusal = (
        b'{"error": {"code": "SQL_INVALID", "message": "m", "hint": "Do this.", "details": {"reason": "r"}}}'
    )
    with (
        faulty_server(Say(status=422, content=refusal)) as faulty,
        tidegate.connect(faulty.url, token="t") as client,
        pytest.raises(SqlInvalid) as caught,
    ):
        client.sql("SELECT 1")
    assert "Do this." in "".join(traceback.format_exception_only(caught.value))
    assert "Do this." not in str(caught.value)


def test_no_rows_are_written_without_a_call() -> None:
    with faulty_server(ANSWER) as faulty, tidegate.connect(faulty.url, token="t") as client:
        assert client.insert("app.t", []) == 0
        with pytest.raises(RequestInvalid, match="not the name of a table"):
            client.insert("t", [])
        assert faulty.seen == []


def test_answers_of_several_statements_and_warnings_are_kept() -> None:
    said = Say(
        content=b'{"columns": [{"name": "n", "type": "INT"}], "rows": [[2]], "rowCount": 1, "tookMs": 1,'
        b'"warnings": ["a frame is damaged"], "results": [{"columns": [], "rows": [], "rowCount": 4},'
        b'{"columns": [{"name": "n", "type": "INT"}], "rows": [[2]], "rowCount": 1}]}'
    )
    with faulty_server(said) as faulty, tidegate.connect(faulty.url, token="t") as client:
        answer = client.sql("DELETE FROM app.t; SELECT 2 AS n")
    assert [result.row_count for result in answer.results] == [4, 1]
    assert answer.results[1].to_dicts() == answer.to_dicts() == [{"n": 2}]
    assert answer.warnings == ["a frame is damaged"]
