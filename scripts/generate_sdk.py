"""Makes the client that blocks from the one for asyncio: takes sdk/_async, writes sdk/_sync.

    python scripts/generate_sdk.py

The calls of both clients are described once. `await` and `async` go, names change as RENAMED says, and
everything else stays as it is written; what both need in two kinds is `_async/concurrency.py` and
`_async/sockets.py` here, and the modules of these names in `blocking/` there.
tests/sdk/test_generated.py fails when the result is not up to date.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

SDK = Path(__file__).resolve().parent.parent / "src" / "tidegate" / "sdk"
SOURCE = SDK / "_async"
TARGET = SDK / "_sync"
# What waits has two forms written by hand: these in _async, and those of the same name in blocking.
IN_BLOCKING = frozenset({"concurrency", "sockets"})

# A whole word on the left becomes the one on the right.
RENAMED = {
    "AsyncClient": "Client",
    "connect_async": "connect",
    "_async": "_sync",
    "aclose": "close",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "StopAsyncIteration": "StopIteration",
    "AsyncIterator": "Iterator",
    "AsyncConnectionPool": "ConnectionPool",
    "AsyncNetworkStream": "NetworkStream",
    "AnyIOBackend": "SyncBackend",
}
PATTERNS = [
    (re.compile(r"\ban `async with`"), "a `with`"),
    (re.compile(r"\basync (def|with|for)\b"), r"\1"),
    (re.compile(r"\bawait "), ""),
    (re.compile(r"\bAwaitable\[None\]"), "None"),
    (re.compile(r"\bAwaitable, "), ""),
    (re.compile(r"\btasks may share it"), "threads may share it"),
    (re.compile(r"\bby one task in a `with`"), "by one thread in a `with`"),
    (re.compile(r"\bany number of its tasks may take\b"), "any number of its threads may take"),
    (re.compile(r"\bOne background task fetches\b"), "One background thread fetches"),
    (re.compile(r"\ba cancelled task or Ctrl-C leaves\b"), "Ctrl-C leaves"),
    (re.compile(r"\bone thread or task\b"), "one thread"),
    (
        re.compile(r"The client for asyncio: takes calls, gives awaitable"),
        "The client that blocks: takes calls, gives",
    ),
    (re.compile(rf"\bsdk\._async\.({'|'.join(sorted(IN_BLOCKING))})\b"), r"sdk.blocking.\1"),
    *((re.compile(rf"\b{old}\b"), new) for old, new in RENAMED.items()),
]


def synchronous(source: str, name: str) -> str:
    """Return the blocking form of a source text; its docstring says where it comes from."""
    text = source
    for pattern, replacement in PATTERNS:
        text = pattern.sub(replacement, text)
    left = re.search(r"\b(?:async|await|[Aa]sync\w*)\b", _without_docstring(text))
    if left:
        raise SystemExit(f"{name}: '{left[0]}' is left; add a rule to {Path(__file__).name}")
    return _tidied(_signed(text, name), name)


def generated() -> dict[Path, str]:
    """Return every file of the blocking client with what it should hold."""
    return {
        TARGET / path.name: synchronous(path.read_text(encoding="utf-8"), path.name)
        for path in sorted(SOURCE.glob("*.py"))
        if path.stem not in IN_BLOCKING
    }


def _without_docstring(text: str) -> str:
    tree = ast.parse(text)
    return ast.unparse(ast.Module(tree.body[1:], []))


def _signed(text: str, name: str) -> str:
    promise = ast.get_docstring(ast.parse(text)) or ""
    note = f"Made from _async/{name} by scripts/generate_sdk.py: change that one, and run it again."
    _, _, rest = text.removeprefix('"""').partition('"""\n')
    return f'"""{promise}\n\n{note}\n"""\n{rest}'


def _tidied(text: str, name: str) -> str:
    """Lay the text out as all others: shorter lines may fit into one, imports may change order."""
    for arguments in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET / name), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> None:
    """Write what has changed and say so."""
    wanted = generated()
    for path in sorted(TARGET.glob("*.py")):
        if path not in wanted:
            path.unlink()
            print(f"removed {path.name}")
    for path, text in wanted.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote _sync/{path.name}")


if __name__ == "__main__":
    main()
