"""The generator of the client's types: writes sdk/types.py from the structs of model/wire.

    python scripts/generate_sdk_types.py

The client returns answers as dictionaries. Their types are TypedDicts, one for each struct that ROOTS reach,
with the names of the fields on the wire. tests/sdk/test_generated.py fails when the file is not up to date.
"""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from tidegate.model.wire import accounts, groups, operations, topics
from tidegate.model.wire.struct import WireStruct

TARGET = Path(__file__).resolve().parent.parent / "src" / "tidegate" / "sdk" / "types.py"
# What the methods of the client return or take; structs in their fields follow.
ROOTS: list[type[WireStruct]] = [
    topics.TopicChangeResponse,
    topics.NewMessage,
    topics.PublishedMessage,
    topics.MessagePage,
    groups.AckResponse,
    groups.NackResponse,
    groups.ExtendResponse,
    groups.GroupResponse,
    accounts.MeResponse,
    accounts.TenantResponse,
    accounts.QuotaResponse,
    accounts.UserResponse,
    accounts.UserDeleteResponse,
    accounts.NewTokenResponse,
    accounts.TokenResponse,
    operations.AuditEventResponse,
    operations.JobResponse,
    accounts.LinkResponse,
    operations.BackupStartResponse,
]
HEAD = '''"""The types of answers: dictionaries whose keys are those of the JSON.

Generated from model/wire by scripts/generate_sdk_types.py: change the structs there, and run it again.
"""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypedDict
'''


def dict_name(struct: type) -> str:
    """Return the name of the TypedDict of a struct: `TopicDict` for `TopicResponse`."""
    return struct.__name__.removesuffix("Response") + "Dict"


def generated() -> str:
    """Return the text that sdk/types.py should have."""
    structs = list(dict.fromkeys(struct for root in ROOTS for struct in _reached(root)))
    text = HEAD + "".join(_typed_dict(struct, structs) for struct in structs)
    command = [sys.executable, "-m", "ruff", "format", "--quiet", "--stdin-filename", str(TARGET), "-"]
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True).stdout


def _reached(struct: type[WireStruct]) -> Iterator[type[WireStruct]]:
    """Yield the structs of the fields, the parent and the struct itself; what is used comes first."""
    parent = _parent(struct)
    if parent is not None:
        yield from _reached(parent)
    module = sys.modules[struct.__module__]
    for annotation in inspect.get_annotations(struct).values():
        for name in re.findall(r"\w+", annotation):
            used = getattr(module, name, None)
            if isinstance(used, type) and issubclass(used, WireStruct):
                yield from _reached(used)
    yield struct


def _parent(struct: type[WireStruct]) -> type[WireStruct] | None:
    parent = struct.__bases__[0]
    return parent if parent is not WireStruct and issubclass(parent, WireStruct) else None


def _typed_dict(struct: type[WireStruct], known: list[type[WireStruct]]) -> str:
    parent = _parent(struct)
    lines = [f"class {dict_name(struct)}({dict_name(parent) if parent else 'TypedDict'}):"]
    doc = inspect.getdoc(struct) or ""
    quoted = f'"""{doc}\n"""' if "\n" in doc else f'"""{doc}"""'
    lines += ["    " + line if line else "" for line in quoted.split("\n")] + [""]
    own = inspect.get_annotations(struct)
    for field in msgspec.structs.fields(struct):
        if field.name in own:
            kind = _json_type(own[field.name], known)
            lines.append(f"    {field.encode_name}: {kind if field.required else f'NotRequired[{kind}]'}")
    return "\n\n\n" + "\n".join(lines) + "\n"


def _json_type(annotation: str, known: list[type[WireStruct]]) -> str:
    """Return the type of a field as it comes out of JSON."""
    text = annotation.replace(" | UnsetType", "").replace("msgspec.Raw", "Any")
    text = text.replace("dict[int, ", "dict[str, ")  # keys of JSON objects are text
    for struct in known:
        text = re.sub(rf"\b{struct.__name__}\b", dict_name(struct), text)
    return text


def main() -> None:
    """Write the file if it changed."""
    text = generated()
    if TARGET.read_text(encoding="utf-8") != text:
        TARGET.write_text(text, encoding="utf-8")
        print("wrote types.py")


if __name__ == "__main__":
    main()
