"""The generator of the blocking client: writes sdk/_sync from sdk/_async.

    python scripts/generate_sdk.py

The calls of both clients are written once, with docstrings that fit both. `await` and `async` are removed,
names change as RENAMED says, and everything else stays as it is. What exists in two forms by hand is
`concurrency.py`, in `_async/` and in `blocking/`.
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
# Written by hand in both forms: these in _async, and those of the same name in blocking.
IN_BLOCKING = frozenset({"concurrency"})

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
    "websockets.asyncio": "websockets.sync",
}
PATTERNS = [
    (re.compile(r"\basync (def|with|for)\b"), r"\1"),
    (re.compile(r"\bawait "), ""),
    (re.compile(r"\bAwaitable\[None\]"), "None"),
    (re.compile(r"\bAwaitable, "), ""),
    (re.compile(rf"\bsdk\._async\.({'|'.join(sorted(IN_BLOCKING))})\b"), r"sdk.blocking.\1"),
    # An open connection, without the warning that a later `connect` connects again by itself.
    (re.compile(r"\bproxy=None,"), "proxy=None, legacy=True,"),
    *((re.compile(rf"\b{old}\b"), new) for old, new in RENAMED.items()),
]


def synchronous(source: str, name: str) -> str:
    """Return the blocking form of a source text; its docstring names the file it is generated from."""
    text = source
    for pattern, replacement in PATTERNS:
        text = pattern.sub(replacement, text)
    left = re.search(r"\b(?:async|await|[Aa]sync\w*)\b", _without_docstring(text))
    if left:
        raise SystemExit(f"{name}: '{left[0]}' is left; add a rule to {Path(__file__).name}")
    return _format(_with_origin(text, name), name)


def generated() -> dict[Path, str]:
    """Return every file of the blocking client with its content."""
    return {
        TARGET / path.name: synchronous(path.read_text(encoding="utf-8"), path.name)
        for path in sorted(SOURCE.glob("*.py"))
        if path.stem not in IN_BLOCKING
    }


def _without_docstring(text: str) -> str:
    tree = ast.parse(text)
    return ast.unparse(ast.Module(tree.body[1:], []))


def _with_origin(text: str, name: str) -> str:
    docstring = ast.get_docstring(ast.parse(text)) or ""
    origin = f"Made from _async/{name} by scripts/generate_sdk.py: change that one, and run it again."
    _, _, rest = text.removeprefix('"""').partition('"""\n')
    return f'"""{docstring}\n\n{origin}\n"""\n{rest}'


def _format(text: str, name: str) -> str:
    """Format the text as ruff does: shorter lines may fit into one, imports may change order."""
    for arguments in (["check", "--select", "I", "--fix", "--quiet"], ["format", "--quiet"]):
        command = [sys.executable, "-m", "ruff", *arguments, "--stdin-filename", str(TARGET / name), "-"]
        text = subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout
    return text


def main() -> None:
    """Write the files that changed, and print their names."""
    files = generated()
    for path in sorted(TARGET.glob("*.py")):
        if path not in files:
            path.unlink()
            print(f"removed {path.name}")
    for path, text in files.items():
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
            print(f"wrote _sync/{path.name}")


if __name__ == "__main__":
    main()
