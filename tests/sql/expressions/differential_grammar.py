"""Random typed expressions for the differential test of live queries."""

from __future__ import annotations

import random
from collections.abc import Callable

from tests.sql.expressions.differential_rows import TEXTS


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"


class Grammar:
    """Returns random expressions of a wanted kind as SQL text."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.params: list[object] = []

    def whole(self, kind: str, depth: int) -> tuple[str, list[object]]:
        """Return an expression and the values of its parameters."""
        self.params = []
        return self.expression(kind, depth), self.params

    def expression(self, kind: str, depth: int) -> str:
        """Return an expression; now and then without the parentheses around it."""
        if depth <= 0 or self.rng.random() < 0.12:
            return self.leaf(kind)
        text = self.rng.choice(_FORMS[kind])(self, depth - 1)
        return text if self.rng.random() < 0.25 else f"({text})"

    def pick(self, *kinds: str) -> str:
        return self.rng.choice(kinds)

    def of(self, depth: int, *kinds: str) -> str:
        return self.expression(self.pick(*kinds), depth)

    def leaf(self, kind: str) -> str:
        rng = self.rng
        columns = {
            "bool": ["bo"],
            "int": ["i", "k"],
            "big": ["n"],
            "double": ["x", "y"],
            "dec": ["d", "e", "w"],
            "text": ["s", "t", "s"],
            "bytes": ["z"],
            "json": ["j"],
            "uuid": ["u"],
            "date": ["da"],
            "ts": ["ts", "tt"],
        }[kind]
        if rng.random() < 0.6:
            return rng.choice(columns)
        if rng.random() < 0.05:
            return "NULL"
        if kind in _BOUND and rng.random() < 0.2:
            self.params.append(rng.choice(_BOUND[kind]))
            return f"${len(self.params)}"
        literals: dict[str, Callable[[], str]] = {
            "bool": lambda: rng.choice(["true", "false"]),
            "int": lambda: str(rng.choice([0, 1, 2, 3, -1, 10, 100, -7, 2147483647])),
            "big": lambda: str(rng.choice([0, 1, 3000000000, -5000000000, 9223372036854775807])),
            "double": lambda: rng.choice(
                ["1e0", "0e0", "2.5e0", "1e300", "-1.5e0", "'nan'::DOUBLE", "'inf'::DOUBLE"]
            ),
            "dec": lambda: rng.choice(["1.5", "0.05", "10.00", "-2.25", "123.456", "2."]),
            "text": lambda: quoted(rng.choice(TEXTS)),
            "bytes": lambda: "'a\\xFF'::BLOB",
            "json": lambda: "'{\"a\": [1, 2]}'::JSON",
            "uuid": lambda: "'A0000000-0000-4000-8000-000000000001'::UUID",
            "date": lambda: rng.choice(["DATE '2020-01-31'", "DATE '1969-12-31'", "'2020-02-29'::DATE"]),
            "ts": lambda: rng.choice(
                ["TIMESTAMPTZ '2020-01-31 10:11:12.5'", "'1500-03-01 00:00:00'::TIMESTAMPTZ"]
            ),
        }
        return literals[kind]()


_BOUND: dict[str, list[object]] = {
    "bool": [True, False],
    "int": [0, 1, -3, 2**31 - 1],
    "big": [5_000_000_000, -(2**63)],
    "double": [1.5, -0.25, 1e300],
    "text": ["a", "ABC", "%", "é"],
}
NUMBERS = ("int", "big", "double", "dec")
ANY = ("bool", *NUMBERS, "text", "date", "ts", "uuid")
_SAME = {
    "int": NUMBERS,
    "big": NUMBERS,
    "double": NUMBERS,
    "dec": NUMBERS,
    "date": ("date", "ts"),
    "ts": ("ts", "date"),
}
_TEXT_FOR = {
    "bool": ["'true'", "'f'"],
    "int": ["'12'", "'2.5'"],
    "big": ["'12'"],
    "double": ["'1.5'", "'nan'"],
    "dec": ["'1.505'", "'2'"],
    "text": ["'a'"],
    "uuid": ["'A0000000-0000-4000-8000-000000000001'"],
    "date": ["'2020-01-31'", "'2020-1-5'"],
    "ts": ["'2020-01-31 10:11:12'", "'2020-01-01'", "'2020-01-01T00:00:00+02:00'"],
}


def _partner(g: Grammar, kind: str, depth: int) -> str:
    """Return something that can be compared with a kind."""
    if g.rng.random() < 0.2:
        return g.rng.choice(_TEXT_FOR[kind])
    return g.of(depth, *_SAME.get(kind, (kind,)))


def _comparison(g: Grammar, depth: int) -> str:
    kind = g.pick(*ANY)
    sign = g.pick("=", "<>", "!=", "<", "<=", ">", ">=", "IS DISTINCT FROM", "IS NOT DISTINCT FROM")
    return f"{g.expression(kind, depth)} {sign} {_partner(g, kind, depth)}"


def _in(g: Grammar, depth: int) -> str:
    kind = g.pick(*ANY)
    listed = ", ".join(
        _partner(g, kind, min(depth, 0 if g.rng.random() < 0.7 else 1)) for _ in range(g.rng.randint(1, 4))
    )
    return f"{g.expression(kind, depth)} {g.pick('IN', 'NOT IN')} ({listed})"


def _between(g: Grammar, depth: int) -> str:
    kind = g.pick(*ANY)
    ends = f"{_partner(g, kind, depth)} AND {_partner(g, kind, depth)}"
    return f"{g.expression(kind, depth)} {g.pick('BETWEEN', 'NOT BETWEEN')} {ends}"


def _like(g: Grammar, depth: int) -> str:
    pattern = quoted(
        "".join(
            g.rng.choices(["a", "b", "%", "_", "A", "é", "!%", "!_", "c", "Σ", "\n"], k=g.rng.randint(0, 4))
        )
    )
    if g.rng.random() < 0.15:
        pattern = g.leaf("text")
    tail = " ESCAPE '!'" if g.rng.random() < 0.3 else ""
    return f"{g.expression('text', depth)} {g.pick('LIKE', 'ILIKE', 'NOT LIKE', 'NOT ILIKE')} {pattern}{tail}"


def _case(kind: str) -> Callable[[Grammar, int], str]:
    def made(g: Grammar, depth: int) -> str:
        def result() -> str:
            return g.expression(kind, depth)

        if g.rng.random() < 0.3:
            subject = g.pick("int", "text", "date")
            return f"CASE {g.leaf(subject)} WHEN {g.leaf(subject)} THEN {result()} ELSE {result()} END"
        tail = f" ELSE {result()}" if g.rng.random() < 0.7 else ""
        more = f" WHEN {g.expression('bool', depth)} THEN {result()}" if g.rng.random() < 0.3 else ""
        return f"CASE WHEN {g.expression('bool', depth)} THEN {result()}{more}{tail} END"

    return made


def _choice(kind: str) -> Callable[[Grammar, int], str]:
    def made(g: Grammar, depth: int) -> str:
        name = g.pick("coalesce", "ifnull", "nullif", "greatest", "least")
        return f"{name}({g.expression(kind, depth)}, {g.expression(kind, depth)})"

    return made


def _cast(target: str, *sources: str) -> Callable[[Grammar, int], str]:
    def made(g: Grammar, depth: int) -> str:
        texts = "q" if target in ("DATE", "TIMESTAMP", "TIMESTAMPTZ", "UUID") else "p"
        source = texts if g.rng.random() < 0.25 and "text" in sources else g.of(depth, *sources)
        kind = target
        if target == "DECIMAL":
            kind = g.pick("DECIMAL(10,2)", "DECIMAL(5,0)", "DECIMAL(18,9)", "DECIMAL(38,10)", "DECIMAL(3,3)")
        return g.pick(f"CAST({source} AS {kind})", f"TRY_CAST({source} AS {kind})", f"({source})::{kind}")

    return made


def _sum(*kinds: str) -> Callable[[Grammar, int], str]:
    return lambda g, depth: f"{g.of(depth, *kinds)} {g.pick('+', '-', '*', '%')} {g.of(depth, *kinds)}"


def _template(text: str) -> Callable[[Grammar, int], str]:
    """Fill {kind} and {kind|kind} with expressions, {a,b} with one of the words."""

    def made(g: Grammar, depth: int) -> str:
        out, rest = "", text
        while "{" in rest:
            head, _, rest = rest.partition("{")
            slot, _, rest = rest.partition("}")
            kinds = slot.split("|")
            out += head + (g.of(depth, *kinds) if kinds[0] in _FORMS else g.pick(*slot.split(",")))
        return out + rest

    return made


_PARTS = "year,month,day,hour,minute,second,quarter,week,dow,isodow,doy,millisecond,microsecond"
_TRUNC = "year,quarter,month,week,day,hour,minute,second"

_FORMS: dict[str, list[Callable[[Grammar, int], str]]] = {
    "bool": [
        *[_comparison] * 5,
        _in,
        _between,
        *[_like] * 2,
        *[_template("{bool} {AND,OR} {bool}")] * 4,
        _template("NOT {bool}"),
        _template("{bool|int|text|ts|json} IS {NULL,NOT NULL}"),
        _template("{bool} IS {TRUE,FALSE,NOT TRUE,NOT FALSE}"),
        _template("{starts_with,ends_with,contains,prefix,suffix}({text}, {text})"),
        _template("regexp_matches({text}, {'a','^a.b$','[a-c]+$','é','(?i)ab','\\d'})"),
        _template("{isnan,isinf}({double})"),
        _template("{text} ~ {'a','b$','^A'}"),
        _template("if({bool}, {bool}, {bool})"),
        _case("bool"),
        _cast("BOOLEAN", "int", "text", "double", "dec"),
    ],
    "int": [
        _template("{int} {+,-,*,%,//} {int}"),
        _template("- {int}"),
        _template("{abs,round}({int})"),
        _template("round({int}, {-1,0,2,-3})"),
        _case("int"),
        _choice("int"),
        _cast("INT", "text", "double", "dec", "big", "bool"),
        _template("sign({int|double|dec})"),
    ],
    "big": [
        _template("{big|int} {+,-,*,%,//} {big}"),
        _template("length({text})"),
        _template("{strpos,instr}({text}, {text})"),
        _template("position({text} IN {text})"),
        _template("{year,month,day,hour,minute,second,week,quarter}({ts|date})"),
        _template("date_part('{" + _PARTS + "}', {ts|date})"),
        _template("extract({" + _PARTS + "} FROM {ts|date})"),
        _template("{epoch_ms,epoch_us}({ts|date})"),
        _template("{date} - {date}"),
        _cast("BIGINT", "text", "double", "dec", "int"),
        _case("big"),
        _choice("big"),
        _template("mod({big}, {int})"),
    ],
    "double": [
        _sum("double"),
        _sum("double", "int", "dec", "big"),
        _template("{int|double|dec|big} / {int|double|dec|big}"),
        _template("{double} // {double|int}"),
        _template("{abs,floor,ceil,round}({double})"),
        _template("{floor,ceil}({int|big})"),
        _template("round({double}, {0,1,2,-1,-2,5})"),
        _template("sqrt({double|int})"),
        _template("power({double|int}, {0,1,2,3,-1,0.5})"),
        _template("epoch({ts|date})"),
        _template("date_part('epoch', {ts|date})"),
        _template("{double|int} {**,^} {2,3,0.5e0,-1}"),
        _template("- {double}"),
        _case("double"),
        _choice("double"),
        _cast("DOUBLE", "text", "int", "big", "dec", "bool"),
    ],
    "dec": [
        _sum("dec"),
        _sum("dec", "int", "big"),
        _template("{abs,floor,ceil,round}({dec})"),
        _template("round({dec}, {0,1,2,-1,-2,5})"),
        _template("- {dec}"),
        _case("dec"),
        _choice("dec"),
        _cast("DECIMAL", "text", "int", "big", "double", "dec", "bool"),
    ],
    "text": [
        _template("{text} || {text|int|date|bool|double|dec|ts|uuid}"),
        _template("concat({text|int}, {text|bool|double|dec})"),
        _template("{lower,upper,trim,ltrim,rtrim,reverse}({text})"),
        _template("trim({text}, {'a','ab ',''})"),
        _template("substring({text}, {int})"),
        _template("substring({text} FROM {1,2,-1} FOR {1,2})"),
        _template("trim({BOTH,LEADING,TRAILING} {'a','b'} FROM {text})"),
        _template("substring({text}, {0,1,2,-1,-2,-9}, {0,1,2,-1,9})"),
        _template("{left,right}({text}, {0,1,2,-1,-2,9})"),
        _template("replace({text}, {text}, {text})"),
        _template("{json} ->> {'a','$.b.c','$.l[1]','l','$.l[-1]',0,1,-1}"),
        _template("json_extract_string({json}, {'a','$.l','$.b.c'})"),
        _case("text"),
        _choice("text"),
        *[_cast("TEXT", "int", "big", "double", "dec", "bool", "date", "ts", "uuid", "json", "bytes")] * 2,
    ],
    "bytes": [_cast("BLOB", "text"), _template("{bytes} || {bytes}"), _choice("bytes")],
    "json": [
        _template("{json} -> {'a','$.b','$.l[0]','l',0}"),
        _template("json_extract({json}, {'$.l','b','$'})"),
    ],
    "uuid": [_cast("UUID", "text"), _choice("uuid"), _case("uuid")],
    "date": [
        _template("{date} {+,-} {int}"),
        _cast("DATE", "text", "ts"),
        _case("date"),
        _choice("date"),
    ],
    "ts": [
        _template(
            "{ts} {+,-} INTERVAL {1 DAY,3 HOUR,1 MONTH,13 MONTH,'1 day 2 hours',1 YEAR,90 MINUTE,'-1 week'}"
        ),
        _template("{date} {+,-} INTERVAL {1 DAY,1 MONTH,36 HOUR}"),
        _template("date_trunc('{" + _TRUNC + "}', {ts|date})"),
        _cast("TIMESTAMPTZ", "text", "date", "ts"),
        _cast("TIMESTAMP", "text", "date", "ts"),
        _case("ts"),
        _choice("ts"),
    ],
}
KINDS = tuple(_FORMS)
