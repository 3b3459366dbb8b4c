"""The client that blocks is made from the one for asyncio: nothing in it is out of date."""

from __future__ import annotations

import importlib.util
import inspect
import sys
from pathlib import Path
from types import ModuleType

import pytest

import tidegate
from tests.paths import ROOT

SCRIPTS = ROOT / "scripts"


def load_script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, SCRIPTS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def script() -> ModuleType:
    return load_script("generate_sdk")


def test_the_types_of_answers_are_up_to_date() -> None:
    types = load_script("generate_sdk_types")
    assert types.TARGET.read_text() == types.generated(), "run 'python scripts/generate_sdk_types.py'"


def test_types_have_the_keys_of_the_json() -> None:
    types = load_script("generate_sdk_types")
    text = types.generated()
    assert "class TopicChangeDict(TopicDict):" in text
    assert "    nextOffsets: dict[str, int]\n    missed: NotRequired[dict[str, int]]" in text
    assert "    dedupKey: NotRequired[str | None]" in text


def test_the_blocking_client_is_up_to_date(script: ModuleType) -> None:
    wanted: dict[Path, str] = script.generated()
    there = set(script.TARGET.glob("*.py"))
    stale = [path.name for path, text in wanted.items() if not path.exists() or path.read_text() != text]
    stale += [path.name for path in there - set(wanted)]
    assert not stale, f"{', '.join(stale)}: run 'python scripts/generate_sdk.py'"
    assert len(wanted) > 5


def test_a_generated_file_says_what_it_is_made_from(script: ModuleType) -> None:
    for path, text in script.generated().items():
        assert f"Made from _async/{path.name} by scripts/generate_sdk.py" in text


def test_what_waits_becomes_plain(script: ModuleType) -> None:
    source = (
        '"""Doc."""\n\nasync def f(c: AsyncClient) -> None:\n    """Do."""\n    async with c:\n'
        "        async for x in c.rows():\n            await x.aclose()\n"
    )
    made = script.synchronous(source, "f.py")
    assert made.endswith(
        '\ndef f(c: Client) -> None:\n    """Do."""\n    with c:\n'
        "        for x in c.rows():\n            x.close()\n"
    )
    with pytest.raises(SystemExit, match="'asyncio' is left"):
        script.synchronous('"""Doc."""\nimport asyncio\n', "f.py")


def test_both_clients_offer_the_same_calls_with_the_same_arguments() -> None:
    with tidegate.connect("http://127.0.0.1:1", token="t") as blocking:
        waiting = tidegate.connect_async("http://127.0.0.1:1", token="t")
        nouns = [name for name in vars(blocking) if not name.startswith("_")]
        assert len(nouns) > 5
        pairs: list[tuple[object, object]] = [(blocking, waiting)]
        pairs += [(getattr(blocking, noun), getattr(waiting, noun)) for noun in nouns]
        pairs += [(blocking.topic("t"), waiting.topic("t"))]
        pairs += [(blocking.topic("t").producer("p"), waiting.topic("t").producer("p"))]
        pairs += [(blocking.topic("t").consumer("g"), waiting.topic("t").consumer("g"))]
        pairs += [(blocking.topic("t").agent("g"), waiting.topic("t").agent("g"))]
        for one, other in pairs:
            assert _calls(one) == _calls(other)


def _calls(thing: object) -> dict[str, list[str]]:
    methods = inspect.getmembers(thing, inspect.ismethod)
    return {
        name: list(inspect.signature(method).parameters)
        for name, method in methods
        if not name.startswith("_")
    }
