"""The compiler from the parsed tree to expressions: every node has its rule here, or is refused by name."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from difflib import get_close_matches
from typing import Any

from tidegate.errors import SqlInvalid
from tidegate.model.names import shorten
from tidegate.sql.expressions import comparisons as logic
from tidegate.sql.expressions.arithmetic import arithmetic, integer_literal, minus
from tidegate.sql.expressions.casts import cast
from tidegate.sql.expressions.functions import PLAIN_HINT, build_call, null_expr, unknown_function
from tidegate.sql.expressions.functions_json import extract
from tidegate.sql.expressions.functions_numbers import power
from tidegate.sql.expressions.functions_text import concatenate, like, matches_regex
from tidegate.sql.expressions.functions_times import interval, part
from tidegate.sql.expressions.types import (
    BIGINT,
    BOOLEAN,
    BYTES,
    DATE,
    DOUBLE,
    INT,
    JSON,
    TEXT,
    TIMESTAMP,
    TIMESTAMPTZ,
    UUID,
    CompiledExpr,
    SqlType,
    constant,
    decimal_type,
    refuse,
)
from tidegate.sql.parser.lexer import fold

DECIMAL_DIGITS_MAX = 38
_DECIMAL_TEXT = re.compile(r"([0-9]*)\.([0-9]*)")
_CAST_KINDS: dict[str, SqlType] = {
    "BOOLEAN": BOOLEAN,
    "INT": INT,
    "BIGINT": BIGINT,
    "DOUBLE": DOUBLE,
    "TEXT": TEXT,
    "VARCHAR": TEXT,
    "VARBINARY": BYTES,
    "JSON": JSON,
    "UUID": UUID,
    "DATE": DATE,
    "TIMESTAMP": TIMESTAMP,
    "TIMESTAMPNTZ": TIMESTAMP,
    "TIMESTAMPTZ": TIMESTAMPTZ,
}
_COMPARISONS = {"EQ": "=", "NEQ": "<>", "LT": "<", "LTE": "<=", "GT": ">", "GTE": ">="}
_ARITHMETIC = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "IntDiv": "//", "Mod": "%"}
# Operators that bind loosely, and those between whose operands they need parentheses: grammars differ there.
_LOOSE = {*_COMPARISONS, "NullSafeEQ", "NullSafeNEQ", "Between", "In", "Like", "ILike", "Is", "RegexpLike"}
_BINDING = {*_LOOSE, *_ARITHMETIC, "DPipe", "Neg", "Pow"}
_ARROW_PLACES = {
    "Paren",
    "Alias",
    "Select",
    "Cast",
    "TryCast",
    "Anonymous",
    "JSONExtract",
    "JSONExtractScalar",
}
_SUBQUERIES = {"Subquery", "Select", "Exists", "Union", "All", "Any"}


def shown(node: Any) -> str:
    """Return a short text of a node for an error."""
    return shorten(" ".join(node.sql(dialect="duckdb").split()))


class TreeCompiler:
    """Compiles expressions over the columns of one row; `values` are the bound parameters, from $1."""

    def __init__(
        self, columns: Mapping[str, CompiledExpr], qualifiers: set[str], values: Sequence[object]
    ) -> None:
        self.columns = columns
        self._qualifiers = qualifiers
        self.values = values
        self.parameters_used: set[int] = set()

    def build(self, node: Any) -> CompiledExpr:
        """Return the expression of a node, or raise SqlUnsupported that names it."""
        name = type(node).__name__
        if name in _BINDING:
            _check_operands(node)
        if name in _COMPARISONS:
            return logic.compare(_COMPARISONS[name], self.build(node.this), self.build(node.expression))
        if name in _ARITHMETIC:
            return arithmetic(_ARITHMETIC[name], self.build(node.this), self.build(node.expression))
        rule = _RULES.get(name)
        if rule is None:
            raise _refusal(node, name)
        return rule(self, node)

    def build_all(self, nodes: Sequence[Any]) -> list[CompiledExpr]:
        """Return the expressions of several nodes."""
        return [self.build(node) for node in nodes]

    def column_of(self, node: Any) -> CompiledExpr:
        """Return the expression of a column; names do not count case, as in DuckDB."""
        qualifier = fold(".".join(part.name for part in node.parts[:-1]))
        if qualifier and qualifier not in self._qualifiers:
            reason = f"'{shorten(qualifier)}' in '{shown(node)}' is not the table of this live query"
            raise SqlInvalid(reason=f"{reason}.", hint="A live query reads one table.")
        found = self.columns.get(fold(node.name))
        if found is None:
            near = get_close_matches(fold(node.name), self.columns, n=3)
            guess = f"; near: {', '.join(near)}" if near else ""
            reason = f"there is no column '{shorten(node.name)}' in this table{guess}."
            raise SqlInvalid(
                reason=reason, hint="DESCRIBE TABLE lists the columns; text goes in single quotes."
            )
        return found

    def parameter(self, node: Any) -> CompiledExpr:
        """Return the expression of a bound parameter, by the type of the value that JSON gave."""
        number = str(node.this or "")
        if not number.isdigit() or int(number) < 1:
            raise refuse(f"The parameter '${shorten(number)}' has no number.", "Write $1, $2, … or ?.")
        if int(number) > len(self.values):
            count = len(self.values)
            raise SqlInvalid(reason=f"parameter ${number} has no value: {count} were given.", hint=None)
        self.parameters_used.add(int(number))
        return parameter_expr(self.values[int(number) - 1], int(number))


def parameter_expr(value: object, number: int) -> CompiledExpr:
    """Return the constant of a parameter's value."""
    if value is None:
        return null_expr()
    if isinstance(value, bool):
        return constant(value, BOOLEAN)
    if isinstance(value, int):
        return integer_literal(value)
    if isinstance(value, float):
        return constant(value, DOUBLE)
    if isinstance(value, str):
        return constant(value, TEXT, literal=True)
    sql_types = "null, true, false, a number or a text"
    raise refuse(f"Parameter ${number} is a {type(value).__name__}: a live query takes {sql_types}.")


def _refusal(node: Any, name: str) -> Exception:
    if name in _SUBQUERIES or node.args.get("query") is not None:
        return refuse(
            "A live query has no subqueries: it looks at one row of one table at a time.", PLAIN_HINT
        )
    if name in ("Window", "Filter", "WithinGroup", "IgnoreNulls", "RespectNulls"):
        return refuse(
            "A live query has no window functions and aggregates: it looks at one row at a time.", PLAIN_HINT
        )
    if name.startswith(("Current", "Localtime", "Session")):
        return unknown_function(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower())
    words = {
        "SimilarTo": "Take regexp_matches(x, 'pattern') or LIKE.",
        "Glob": "Take LIKE.",
        "Collate": "Compare lower(x) with lower(y).",
        "StartsWith": "Take starts_with(x, 'a').",
        "RegexpILike": "Take regexp_matches(x, '(?i)pattern').",
        "AtTimeZone": "Times are UTC in a live query.",
    }
    hint = words.get(name, "docs/reference/live-filters.md lists what may be used in a live query.")
    return refuse(f"'{shown(node)}' cannot be used in a live query.", hint)


def _literal(_compiler: TreeCompiler, node: Any) -> CompiledExpr:
    text = node.name
    if node.is_string:
        return constant(text, TEXT, literal=True)
    if text.isdigit():
        return integer_literal(int(text)) if len(text) < 40 else integer_literal(10**39)
    matched = _DECIMAL_TEXT.fullmatch(text)
    if matched and 0 < len(matched[1] + matched[2]) <= DECIMAL_DIGITS_MAX:
        return constant(Decimal(text), decimal_type(len(matched[1] + matched[2]), len(matched[2])))
    try:
        return constant(float(text), DOUBLE)
    except ValueError:
        raise refuse(f"'{shorten(text)}' is no number that a live query takes.") from None


def _negative(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    # The smallest BIGINT has no positive twin.
    inner = node.this
    if (
        type(inner).__name__ == "Literal"
        and not inner.is_string
        and inner.name.isdigit()
        and len(inner.name) < 40
    ):
        return integer_literal(-int(inner.name))
    return minus(compiler.build(inner))


def _cast(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    expr = replace(compiler.build(node.this), type=None)
    return cast(expr, cast_type(node.args["to"]), attempt=type(node).__name__ == "TryCast")


def cast_type(to: Any) -> SqlType:
    """Return the type that a cast names."""
    name = to.this.name if hasattr(to.this, "name") else str(to.this)
    if name == "DECIMAL" and len(to.expressions) in (1, 2):
        sizes = [int(size.name) for size in to.expressions]
        precision, scale = sizes[0], sizes[1] if len(sizes) == 2 else 0
        if 1 <= precision <= DECIMAL_DIGITS_MAX and 0 <= scale <= precision:
            return decimal_type(precision, scale)
    sql_type = _CAST_KINDS.get(name)
    if sql_type is None or to.args.get("nested"):
        hint = "Take BOOLEAN, INT, BIGINT, DOUBLE, DECIMAL(p,s), TEXT, BLOB, JSON, UUID, DATE or TIMESTAMP."
        raise refuse(f"A live query cannot cast to {shown(to)}.", hint)
    return sql_type


def _is(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    target, expr = type(node.expression).__name__, compiler.build(node.this)
    if target == "Null":
        return logic.is_null(expr)
    if target == "Boolean":
        return logic.is_truth(expr, bool(node.expression.this))
    raise refuse(f"'{shown(node)}' cannot be used in a live query.", "IS takes [NOT] NULL, TRUE, FALSE.")


def _like(compiler: TreeCompiler, node: Any, escape: CompiledExpr | None = None) -> CompiledExpr:
    fold = type(node).__name__ == "ILike"
    if type(node.expression).__name__ in ("Any", "All", "Tuple"):
        raise refuse("LIKE takes one pattern in a live query.", "Join several with OR.")
    made = like(compiler.build(node.this), compiler.build(node.expression), escape, fold=fold)
    return logic.negate(made) if node.args.get("negate") else made


def _regex(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    if type(node.expression).__name__ not in ("Literal", "Placeholder", "Paren"):
        raise refuse(f"The pattern in '{shown(node)}' needs parentheses.")
    return matches_regex(compiler.build_all([node.this, node.expression]))


def _escape(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    if type(node.this).__name__ not in ("Like", "ILike"):
        raise refuse(f"'{shown(node)}' cannot be used in a live query.")
    return _like(compiler, node.this, compiler.build(node.expression))


def _in(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    if not node.expressions:
        if node.args.get("query") is not None:
            raise _refusal(node, "Subquery")
        raise refuse("IN takes a list of values in parentheses in a live query.")
    return logic.among(compiler.build(node.this), compiler.build_all(node.expressions))


def _between(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    if node.args.get("symmetric"):
        raise refuse("BETWEEN SYMMETRIC cannot be used in a live query.", "Put the smaller value first.")
    return logic.between(*compiler.build_all([node.this, node.args["low"], node.args["high"]]))


def _case(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    branches = node.args["ifs"]
    conditions = compiler.build_all([branch.this for branch in branches])
    if node.this is not None:
        subject = compiler.build(node.this)
        sql_type = logic.mixed([subject, *conditions], "CASE")
        conditions = [logic.compare("=", cast(subject, sql_type), cast(one, sql_type)) for one in conditions]
    results = compiler.build_all([branch.args["true"] for branch in branches])
    otherwise = node.args.get("default")
    return logic.case(conditions, results, null_expr() if otherwise is None else compiler.build(otherwise))


def _if(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    parts = [node.this, node.args.get("true"), node.args.get("false")]
    return build_call("if", compiler.build_all([each for each in parts if each is not None]))


def _chain(node: Any) -> list[Any]:
    """Return the parts of a AND b AND c, which the tree nests to the left."""
    parts, sql_type = [], type(node)
    while type(node) is sql_type:
        parts.append(node.expression)
        node = node.this
    return [node, *reversed(parts)]


def _call(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    name = str(node.this).lower()
    if any(type(each).__name__ == "Lambda" for each in node.expressions):
        raise refuse(f"An arrow in the arguments of {name}() needs parentheses: {name}((x -> 'key')).")
    if any(type(each).__name__ in ("Star", "Distinct", "Kwarg", "PropertyEQ") for each in node.expressions):
        raise unknown_function(name)
    return build_call(name, compiler.build_all(node.expressions))


def _trim(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    side = str(node.args.get("position") or "BOTH").upper()
    name = {"LEADING": "ltrim", "TRAILING": "rtrim"}.get(side, "trim")
    return build_call(
        name, compiler.build_all([each for each in (node.this, node.expression) if each is not None])
    )


def _cut(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    parts = (node.this, node.args.get("start"), node.args.get("length"))
    return build_call("substring", compiler.build_all([each for each in parts if each is not None]))


def _interval(_compiler: TreeCompiler, node: Any) -> CompiledExpr:
    unit = node.args.get("unit")
    if type(node.this).__name__ != "Literal" or (unit is not None and type(unit).__name__ != "Var"):
        raise refuse(
            "An INTERVAL must be a constant in a live query.", "Write INTERVAL 3 DAY or '1 day 2 hours'."
        )
    return interval(node.this.name, unit.name if unit is not None else None)


def _extract(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    return part(node.this.name, compiler.build(node.expression), function="extract")


def _check_operands(node: Any) -> None:
    """Refuse a comparison, IS, IN, LIKE or NOT as an operand without parentheses around it."""
    for place in ("this", "expression", "low", "high"):
        operand = node.args.get(place)
        # Here the tree has parentheses that the text may not have.
        if place == "expression" and type(node).__name__.startswith("NullSafe") and operand.this is not None:
            operand = operand.this if type(operand).__name__ == "Paren" else operand
        if type(operand).__name__ in {*_LOOSE, "Escape", "Not", "And", "Or"}:
            raise refuse(
                f"'{shown(operand)}' needs parentheses in '{shown(node)}'.", "Or join them with AND."
            )


def _check_arrow(node: Any, as_text: bool) -> None:
    """Refuse an arrow that DuckDB reads otherwise than the tree: there it binds less than most operators."""
    parent = type(node.parent).__name__
    if as_text and type(node.this).__name__ != "JSONExtract":
        is_clear = parent not in {*_ARITHMETIC, "Neg"}
    else:
        is_clear = parent in _ARROW_PLACES
    if not is_clear:
        arrow = "->>" if as_text else "->"
        raise refuse(f"'{shown(node)}' needs parentheses: (x {arrow} 'key').")


def _json(compiler: TreeCompiler, node: Any) -> CompiledExpr:
    as_text = type(node).__name__ == "JSONExtractScalar"
    _check_arrow(node, as_text)
    return extract(compiler.build(node.this), compiler.build(node.expression), as_text=as_text)


_RULES: dict[str, Callable[[TreeCompiler, Any], CompiledExpr]] = {
    "Column": TreeCompiler.column_of,
    "Placeholder": TreeCompiler.parameter,
    "Literal": _literal,
    "Boolean": lambda _c, node: constant(bool(node.this), BOOLEAN),
    "Null": lambda _c, _node: null_expr(),
    "Paren": lambda c, node: c.build(node.this),
    "And": lambda c, node: logic.all_of(c.build_all(_chain(node))),
    "Or": lambda c, node: logic.any_of(c.build_all(_chain(node))),
    "Not": lambda c, node: logic.negate(c.build(node.this)),
    "Is": _is,
    "NullSafeEQ": lambda c, node: logic.distinct(c.build(node.this), c.build(node.expression), negated=True),
    "NullSafeNEQ": lambda c, node: logic.distinct(
        c.build(node.this), c.build(node.expression), negated=False
    ),
    "Between": _between,
    "In": _in,
    "Like": _like,
    "ILike": _like,
    "Escape": _escape,
    "RegexpLike": _regex,
    "DPipe": lambda c, node: concatenate(c.build(node.this), c.build(node.expression)),
    "Neg": _negative,
    "Pow": lambda c, node: power(c.build(node.this), c.build(node.expression)),
    "Case": _case,
    "If": _if,
    "Cast": _cast,
    "TryCast": _cast,
    "Anonymous": _call,
    "Trim": _trim,
    "Substring": _cut,
    "StrPosition": lambda c, node: build_call("strpos", c.build_all([node.this, node.args["substr"]])),
    "Extract": _extract,
    "Interval": _interval,
    "JSONExtract": _json,
    "JSONExtractScalar": _json,
}
