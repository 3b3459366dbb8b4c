"""`tidegate sql` as a user calls it: statements, scripts, parameters, short forms, mistakes, the prompt."""

from __future__ import annotations

import json
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.calls import tidegate_here
from tests.cli.terminals import Terminal, terminal
from tidegate.cli.commands.sql.prompt import HISTORY_ENTRIES_MAX, HISTORY_FILE, BoundedHistory, open_history
from tidegate.cli.commands.sql.sql import parse_param
from tidegate.testing.server import running_server

SCRIPT = """CREATE NAMESPACE chat;
CREATE SHARED TABLE chat.messages (id BIGINT PRIMARY KEY, text TEXT, price DECIMAL(9,2));
INSERT INTO chat.messages VALUES (1, 'hello', 1.50), (20, NULL, NULL), (3, '', -20.25);
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    with running_server(tmp_path_factory.mktemp("sql") / "home") as server:
        made = tidegate_here("sql", home=server.home, stdin=SCRIPT)
        assert made.returncode == 0, made.stderr
        said = [line.partition(" in ")[0] for line in made.stdout.splitlines()]
        assert said == ["Done", "Done", "3 rows written; 3 statements"]
        yield server.home


def test_rows_are_drawn_and_counted(home: Path) -> None:
    answer = tidegate_here("sql", "SELECT * FROM chat.messages ORDER BY id", home=home)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[:5] == [
        "id  text    price",
        "─────────────────",
        " 1  hello    1.50",
        " 3         -20.25",
        "20  NULL     NULL",
    ]
    assert answer.stdout.splitlines()[5].startswith("3 rows in ")


def test_parameters_are_bound_and_never_pasted(home: Path) -> None:
    answer = tidegate_here(
        "sql", "SELECT ? AS a, ? AS b", "-p", "it's; --", "--param", "5", "--json", home=home
    )
    assert json.loads(answer.stdout)["rows"] == [["it's; --", 5]]
    answer = tidegate_here(
        "sql", "SELECT text FROM chat.messages WHERE id = ?", "-p", "1", "--json", home=home
    )
    assert json.loads(answer.stdout)["rows"] == [["hello"]]


def test_parameters_belong_to_the_one_statement_of_a_script_that_has_some(home: Path) -> None:
    answer = tidegate_here("sql", "SELECT 1; SELECT ? AS a", "-p", "5", "--json", home=home)
    assert [json.loads(line)["rows"] for line in answer.stdout.splitlines()] == [[[1]], [[5]]]
    for text, code in (("SELECT ?; SELECT ?", 1), ("SELECT ?;\n\\d\nSELECT 1", 2), ("\\d", 2)):
        refused = tidegate_here("sql", text, "--param", "5", home=home)
        assert (refused.returncode, refused.stdout) == (code, "")


@pytest.mark.parametrize(
    ("text", "value"),
    [("5", 5), ("-1.5", -1.5), ("null", None), ('"5"', "5"), ("007", "007"), ("NaN", "NaN"), ("", "")],
)
def test_a_parameter_is_json_where_it_reads_as_json(text: str, value: object) -> None:
    assert parse_param(text) == value


def test_several_statements_answer_one_by_one(home: Path) -> None:
    text = "SELECT 1 AS a; CREATE NAMESPACE IF NOT EXISTS chat; SELECT 3 AS a"
    answer = tidegate_here("sql", "--json", text, home=home)
    lines = [json.loads(line) for line in answer.stdout.splitlines()]
    assert [line["rows"] for line in lines] == [[[1]], [], [[3]]]
    assert ["tookMs" in line for line in lines] == [False, False, True]


def test_one_that_fails_ends_a_script_and_says_what_was_run(home: Path) -> None:
    script = "UPSERT INTO chat.messages (id) VALUES (50);\n  DELETE FROM chat.messages WHERE nothing = 1;\n"
    answer = tidegate_here("sql", f"{script}SELECT 1", home=home)
    assert (answer.returncode, answer.stdout) == (1, "1 row written\n")
    assert "This is statement 2 of 3. Statement 1 was run." in answer.stderr
    answer = tidegate_here("sql", "DELETE FROM chat.messages WHERE id = 50", home=home)
    assert answer.stdout.startswith("1 row deleted in ")


def test_of_a_script_with_a_mistake_at_its_end_nothing_is_run(home: Path) -> None:
    answer = tidegate_here("sql", home=home, stdin="CREATE NAMESPACE half;\nCREATE TABEL half.x (id INT);\n")
    assert (answer.returncode, answer.stdout) == (1, "")
    assert "line 2, column 8" in answer.stderr
    assert "half" not in tidegate_here("sql", "\\dn", home=home).stdout


# The comment ends at its second */, as PostgreSQL and DuckDB have it: what is in it is not run.
COMMENTED_OUT = "/* old /* note */; DROP TABLE chat.messages; */ SELECT 7 AS seven;"


def test_a_statement_in_a_comment_is_not_run(home: Path) -> None:
    as_argument = tidegate_here("sql", COMMENTED_OUT, home=home)
    piped = [tidegate_here("sql", *words, home=home, stdin=COMMENTED_OUT) for words in ((), ("-",))]
    in_a_script = tidegate_here("sql", home=home, stdin=f"\\dn\n{COMMENTED_OUT}\nSELECT 8")
    for answer in (as_argument, *piped, in_a_script):
        assert (answer.returncode, "seven" in answer.stdout) == (0, True), answer.stderr
    assert tidegate_here("sql", "DESCRIBE TABLE chat.messages", home=home).returncode == 0


def test_a_statement_in_a_comment_is_not_run_in_the_prompt(home: Path) -> None:
    with terminal("sql", home=home) as screen:
        assert "seven" in ask(screen, f"{COMMENTED_OUT}\r", "1 row in")
        screen.wait_for("tidegate>")
        screen.type("\x04")
        screen.wait_for_end()
    assert tidegate_here("sql", "DESCRIBE TABLE chat.messages", home=home).returncode == 0


def test_short_forms_in_a_script_leave_the_lines_behind_them_alone(home: Path) -> None:
    script = "\\dn\nSELECT '\n\\d' AS a;\nSELECT 5 AS five;\n  \\d chat.messages\nSELEC 1"
    answer = tidegate_here("sql", home=home, stdin=script)
    assert answer.returncode == 1
    assert all(word in answer.stdout for word in ("namespace", "\\n\\d", "five", "DECIMAL(9,2)"))
    assert "line 6, column 1" in answer.stderr


def test_what_became_of_rows_is_said_by_the_verb(home: Path) -> None:
    script = (
        "UPSERT INTO chat.messages (id) VALUES (60); UPDATE chat.messages SET text = 'x' WHERE id = 60;"
        "EXECUTE AS 'ann' (DELETE FROM chat.messages WHERE id = 60)"
    )
    said = tidegate_here("sql", script, home=home).stdout.splitlines()
    assert [line.partition(";")[0] for line in said] == ["1 row written", "1 row changed", "1 row deleted"]


def test_a_file_or_a_statement_without_quotes_is_told_what_to_type(home: Path, tmp_path: Path) -> None:
    script = tmp_path / "re port.sql"
    script.write_text("SELECT 1", encoding="utf-8")
    answer = tidegate_here("sql", str(script), home=home)
    assert (answer.returncode, f"tidegate sql < '{script}'" in answer.stderr) == (2, True)
    for command in ("sql", "subscribe"):
        answer = tidegate_here(command, "SELECT", "1", home=home)
        assert (answer.returncode, f'tidegate {command} "SELECT' in answer.stderr) == (2, True)


def test_a_mistake_in_a_script_is_shown_with_its_own_line(home: Path) -> None:
    script = "SELECT 1;\n\n  CREATE SHARED\n  TABEL chat.x (id INT);\n"
    answer = tidegate_here("sql", home=home, stdin=script)
    assert answer.returncode == 1
    lines = answer.stderr.splitlines()
    assert "line 4, column 3" in lines[0]
    assert lines[1:3] == ["  4 |   TABEL chat.x (id INT);", "        ^"]
    wire = json.loads(tidegate_here("sql", "--json", home=home, stdin=script).stderr)["error"]
    assert (wire["details"]["line"], wire["details"]["column"]) == (4, 3)
    assert "\n" not in wire["hint"]


def test_a_mistake_that_the_query_engine_finds_is_drawn_once(home: Path) -> None:
    answer = tidegate_here("sql", "SELECT id,\n  nothing FROM chat.messages", home=home)
    assert answer.returncode == 1
    assert answer.stderr.count("nothing FROM") <= 1


@pytest.mark.parametrize(
    ("short", "words"),
    [
        ("\\d", ["chat", "messages", "SHARED"]),
        ("\\d chat.messages", ["id", "BIGINT", "DECIMAL(9,2)"]),
        ("\\d chat", ["chat", "messages", "SHARED"]),
        ("\\dn", ["chat"]),
    ],
)
def test_short_forms_tell_what_there_is(home: Path, short: str, words: list[str]) -> None:
    answer = tidegate_here("sql", short, home=home)
    assert answer.returncode == 0, answer.stderr
    assert all(word in answer.stdout for word in words)


@pytest.mark.parametrize(
    "short", ["\\z", "\\d chat.messages x", "\\d chat.messages; DROP TABLE chat.messages"]
)
def test_other_short_forms_are_refused(home: Path, short: str) -> None:
    answer = tidegate_here("sql", short, home=home)
    assert answer.returncode == 1
    assert "is no short form" in answer.stderr


def test_a_table_without_its_namespace_is_told_how_it_is_written(home: Path) -> None:
    answer = tidegate_here("sql", "\\d messages", home=home)
    assert answer.returncode == 1
    assert "\\d NAMESPACE.TABLE" in answer.stderr


def ask(screen: Terminal, typed: str, said: str) -> str:
    screen.wait_for("tidegate>")
    screen.type(typed)
    return screen.wait_for(said)


def test_the_prompt_runs_statements_of_several_lines_and_goes_on_after_mistakes(home: Path) -> None:
    with terminal("sql", home=home) as screen:
        assert "42" in ask(screen, "SELECT 41\r+ 1 AS n;\r", "1 row in")
        assert "^" in ask(screen, "CRATE TABLE x;\r", "^")
        ask(screen, "SELECT 'never ended\x03", "ended")
        assert "Rows are shown as blocks" in ask(screen, "\\x\r", "blocks.")
        assert "── row 1" in ask(screen, "SELECT 5 AS n;\r", "1 row in")
        assert "namespaces" in ask(screen, "\\?\r", "columns.")
        assert "\\x (rows as blocks)" in ask(screen, "\\z\r", "(leave).")
        screen.wait_for("tidegate>")
        screen.type("\x04")
        code, _ = screen.wait_for_end()
    assert code == 0


def test_tab_completes_keywords_tables_and_columns_also_new_ones(home: Path) -> None:
    with terminal("sql", home=home) as screen:
        ask(screen, "SEL\t", "SELECT")
        screen.type(" count(*) AS n FROM chat.mes\t")
        screen.wait_for("chat.messages")
        screen.type(" WHERE pric\t")
        screen.wait_for("price")
        screen.type(" > 0;\r")
        assert "1" in screen.wait_for("1 row in")
        ask(screen, "CREATE SHARED TABLE chat.zebras (id INT PRIMARY KEY);\r", "Done")
        ask(screen, "DESCRIBE TABLE chat.z\t", "chat.zebras")
        screen.type(";\r")
        screen.wait_for("1 row in")
        ask(screen, "quit\r", "quit")
        assert screen.wait_for_end()[0] == 0


def test_the_prompt_remembers_for_its_owner_alone(home: Path) -> None:
    with terminal("sql", home=home) as screen:
        ask(screen, "SELECT 'remember\rme' AS r;\r", "1 row in")
        screen.wait_for("tidegate>")
        screen.type("\x04")
        screen.wait_for_end()
    assert stat.S_IMODE((home / HISTORY_FILE).stat().st_mode) == 0o600
    with terminal("sql", home=home) as screen:
        screen.wait_for("tidegate>")
        screen.type("\x1b[A")
        screen.wait_for("me' AS r;")
        screen.type("\r")
        assert "remember\\nme" in screen.wait_for("1 row in")
        ask(screen, "\\q\r", "\\q")
        assert screen.wait_for_end()[0] == 0


def test_the_history_does_not_grow_without_end(tmp_path: Path) -> None:
    history = BoundedHistory(tmp_path / HISTORY_FILE)
    for number in range(HISTORY_ENTRIES_MAX + 20):
        history.store_string(f"SELECT {number};\n-- two lines")
    again = list(BoundedHistory(tmp_path / HISTORY_FILE).load_history_strings())
    assert len(again) == HISTORY_ENTRIES_MAX
    assert again[0] == f"SELECT {HISTORY_ENTRIES_MAX + 19};\n-- two lines"
    assert stat.S_IMODE((tmp_path / HISTORY_FILE).stat().st_mode) == 0o600
    assert not isinstance(open_history(tmp_path / "nowhere"), BoundedHistory)
