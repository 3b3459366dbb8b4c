"""What a statement does, by its words: takes its text, says whether it only reads. Pure.

A statement that only reads may be sent twice. In doubt it writes: then it is sent once, and nothing is lost.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

# What a semicolon or a word may hide in: '…' and "…" (a doubled quote stays inside), E'…' (so does \'),
# $tag$…$tag$, -- to the line's end, /* … */. Then words, parameters, runs of blanks, and single characters.
PIECES = re.compile(
    r"""(?P<quote>[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*"
        | (?P<tag>\$(?:[A-Za-z_]\w*)?\$).*?(?P=tag))
    | (?P<comment>--[^\n]* | /\*.*?\*/ | \s+)
    | (?P<open>[eE]' | '|"|/\*|\$(?:[A-Za-z_]\w*)?\$)
    | (?P<word>\w+)
    | (?P<mark>\$\d* | .)""",
    re.VERBOSE | re.DOTALL,
)
READING = frozenset({"SELECT", "WITH", "FROM", "VALUES", "TABLE", "SHOW", "DESCRIBE", "DESC", "EXPLAIN"})
READING |= {"SUMMARIZE"}
WRITING = frozenset({"INSERT", "UPSERT", "UPDATE", "DELETE", "MERGE", "CREATE", "ALTER", "DROP", "EXECUTE"})


def only_reads(sql: str) -> bool:
    """Say whether every statement of a text certainly changes nothing."""
    first = True
    for kind, text in pieces(sql):
        if kind == "open":
            return False
        if kind == "word":
            word = text.upper()
            if word in WRITING or (first and word not in READING):
                return False
            first = False
        elif text == ";":
            first = True
        elif first and text != "(":
            return False
    return True


def gives_rows(sql: str) -> bool:
    """Say whether a text is one statement that answers rows and changes nothing, by how it begins."""
    if is_script(sql):
        return False
    word = first_word(sql)
    if word == "EXECUTE":  # AS 'user' (statement)
        return first_word(sql[sql.find("(") :]) in READING and "(" in sql
    # Behind WITH an INSERT may follow; the others have their verb in front, and nothing of theirs writes.
    return word in READING and (word != "WITH" or only_reads(sql))


def is_script(sql: str) -> bool:
    """Say whether there is anything behind the first semicolon."""
    ended = False
    for _, text in pieces(sql) if ";" in sql else ():
        if text == ";":
            ended = True
        elif ended:
            return True
    return False


def first_word(sql: str) -> str:
    """Give the word that a statement begins with, in capitals; nothing where it begins with none."""
    for kind, text in pieces(sql):
        if kind == "word":
            return text.upper()
        if text != "(":
            break
    return ""


def pieces(sql: str) -> Iterator[tuple[str, str]]:
    """Give the pieces of a text that are no blanks and no comments, each with its kind."""
    for match in PIECES.finditer(sql):
        kind = match.lastgroup or "mark"
        if kind == "tag":
            kind = "quote"
        if kind != "comment":
            yield kind, match.group()
