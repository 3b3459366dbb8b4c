"""The planner of statements: a step for each, from a text, its parameters and a caller.

Parsed texts are cached, so that a service that sends the same text again pays for parsing it once. Nothing is
run here: a step is either a change for the committer or work for a thread, and the door decides where.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from tidegate.errors import SqlInvalid, SqlUnsupported, TidegateError
from tidegate.model.access import Operation
from tidegate.model.names import check_row_owner
from tidegate.query.duckdb.analysis import sql_invalid
from tidegate.query.duckdb.error_positions import TextRefused, written_span
from tidegate.query.statements.ddl import DdlPlanner
from tidegate.query.statements.dml import WritePlanner
from tidegate.query.statements.select import SelectPlanner
from tidegate.query.statements.show import ShowPlanner
from tidegate.query.statements.topics import TopicStatements, topic_kind
from tidegate.query.step import Caller, StatementKind, StatementResult, Step, result_of_answer
from tidegate.sql import statements as sql
from tidegate.sql.parser.parse import parse
from tidegate.sql.statements import TopicStatement

# Texts that are cached: a service sends a few dozen, and long ones are rarely sent twice.
PARSED_MAX = 2048
PARSED_CHARS_MAX = 4096


class StatementRunner:
    """Plans statements; any thread may ask."""

    def __init__(
        self,
        defining: DdlPlanner,
        showing: ShowPlanner,
        writing: WritePlanner,
        selecting: SelectPlanner,
        topics: TopicStatements | None = None,
    ) -> None:
        self._topics = topics
        self._showing = showing
        self._writing = writing
        self._selecting = selecting
        self._definitions: dict[type[sql.Statement], Callable[[Any, Caller], Step]] = {
            sql.CreateNamespace: defining.create_namespace,
            sql.DropNamespace: defining.drop_namespace,
            sql.CreateTable: defining.create_table,
            sql.AlterAddColumn: defining.add_column,
            sql.AlterSet: defining.set_options,
            sql.DropTable: defining.drop_table,
            sql.CreateIndex: defining.create_index,
            sql.DropIndex: defining.drop_index,
        }
        self._parsed: OrderedDict[str, tuple[sql.Statement, ...]] = OrderedDict()
        self._lock = threading.Lock()

    def parsed(self, text: str) -> tuple[sql.Statement, ...]:
        """Return the statements of a text; SqlInvalid says where it is wrong."""
        known = self._parsed.get(text)
        if known is not None:
            return known
        statements = parse(text)
        if not statements:
            raise SqlInvalid(reason="it is empty.", hint="Write a statement.", line=1, column=1)
        if len(text) <= PARSED_CHARS_MAX:
            with self._lock:
                self._parsed[text] = statements
                while len(self._parsed) > PARSED_MAX:
                    self._parsed.popitem(last=False)
        return statements

    def params_of(self, statements: Sequence[sql.Statement], params: Sequence[Any]) -> list[Sequence[Any]]:
        """Return the parameters of each statement; several statements may not share them."""
        takers = [number for number, one in enumerate(statements) if one.parameter_count]
        if len(takers) > 1:
            raise SqlInvalid(
                reason=f"{len(takers)} statements of this text have parameters.",
                hint="Send them one by one, so that it is clear which values belong to which.",
            )
        if params and not takers:
            raise SqlInvalid(
                reason=f"values for its parameters: 0 wanted, {len(params)} given.",
                hint="Give one value for each ? or $n.",
            )
        return [params if number in takers else () for number in range(len(statements))]

    def step(self, statement: sql.Statement, params: Sequence[Any], caller: Caller) -> Step:
        """Plan one statement; what the caller may not do is refused here or while it runs."""
        if isinstance(statement, sql.ExecuteAs):
            caller.check(Operation.SQL_EXECUTE_AS)
            acting = Caller(caller.principal, check_row_owner(statement.user))
            return self.step(statement.statement, params, acting)
        if isinstance(statement, sql.Insert):
            return self._writing.insert(statement, params, caller)
        if isinstance(statement, sql.Select):
            return self._selecting.select(statement, params, caller)
        if isinstance(statement, sql.Update):
            return self._writing.update(statement, params, caller)
        if isinstance(statement, sql.Delete):
            return self._writing.delete(statement, params, caller)
        if isinstance(statement, sql.Explain):
            return self._selecting.explain(statement, params, caller)
        if isinstance(statement, TopicStatement):
            return self._about_topics(statement, params, caller)
        return self._about_tables(statement, caller)

    def step_arrow(self, statement: sql.Statement, rows: Any, caller: Caller) -> Step:
        """Plan an INSERT or UPSERT whose rows come as Arrow."""
        if isinstance(statement, sql.ExecuteAs):
            caller.check(Operation.SQL_EXECUTE_AS)
            acting = Caller(caller.principal, check_row_owner(statement.user))
            return self.step_arrow(statement.statement, rows, acting)
        if not isinstance(statement, sql.Insert):
            raise SqlUnsupported(reason="Rows as Arrow go with INSERT INTO or UPSERT INTO.")
        return self._writing.insert_arrow(statement, rows, caller)

    def _about_topics(self, statement: TopicStatement, params: Sequence[Any], caller: Caller) -> Step:
        if self._topics is None:
            raise SqlUnsupported(reason="There are no topics here.")
        return self._topics.step(statement, params, caller)

    def _about_tables(self, statement: sql.Statement, caller: Caller) -> Step:
        plan = self._definitions.get(type(statement))
        return self._shown(statement, caller) if plan is None else plan(statement, caller)

    def _shown(self, statement: sql.Statement, caller: Caller) -> Step:
        if isinstance(statement, sql.ShowTables):
            return self._showing.show_tables(statement, caller)
        if isinstance(statement, sql.ShowNamespaces):
            return self._showing.show_namespaces(caller)
        if isinstance(statement, sql.DescribeTable):
            if statement.table.namespace != "lake":
                return self._showing.describe(statement, caller)
            text = f'DESCRIBE "{statement.table.namespace}"."{statement.table.name}"'
            return Step("show", work=lambda: self._described(text, caller))
        raise SqlUnsupported(reason=f"{type(statement).__name__} is not run here.")

    def _described(self, text: str, caller: Caller) -> StatementResult:
        return result_of_answer(self._selecting.run(text, (), caller))


def kind_of(statement: sql.Statement) -> StatementKind:
    """Return the kind under which a statement is counted."""
    if isinstance(statement, sql.ExecuteAs):
        return kind_of(statement.statement)
    if isinstance(statement, sql.Insert):
        return "upsert" if statement.upsert else "insert"
    if isinstance(statement, (sql.Select, sql.Explain)):
        return "select"
    if isinstance(statement, sql.Update):
        return "update"
    if isinstance(statement, sql.Delete):
        return "delete"
    if isinstance(statement, TopicStatement):
        return topic_kind(statement)
    shows = isinstance(statement, (sql.ShowTables, sql.ShowNamespaces, sql.DescribeTable))
    return "show" if shows else "ddl"


@contextmanager
def statement_errors(text: str, statements: Sequence[sql.Statement], number: int) -> Iterator[None]:
    """Add to an error the number of its statement, and its position in the whole text."""
    try:
        yield
    except TidegateError as raised:
        refused, problem = raised.__cause__, raised
        if isinstance(refused, TextRefused) and "line" in raised.values:
            # The position is one in the text that DuckDB had.
            problem = sql_invalid(refused, text, written_span(refused, text, statements[number]))
        if len(statements) > 1:
            problem.values["statement"] = number + 1
            done = "Nothing was run" if number == 0 else f"Statements 1 to {number} were run"
            if number == 1:
                done = "Statement 1 was run"
            problem.hint = (
                f"{problem.hint} This is statement {number + 1} of {len(statements)}. {done}.".strip()
            )
        if problem is raised:
            raise
        raise problem from refused
