"""Evolution: what older versions wrote is read by the code of today, step by step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import pytest

from tidegate.errors import StateInvalid, StateMismatch, StorageCorrupt, ValueInvalid
from tidegate.state.schema.migrations import Migration, StateRef, StoredForm, Upgrader, migration_paths
from tidegate.state.serializers.registry import JsonSerializer, Serializer, serializer_for
from tidegate.state.serializers.signatures import signature_of

NAMED = StateRef("logins", "user")


@dataclass
class UserV1:
    user_id: str
    login_count: int
    colour: str


@dataclass
class UserV2:
    user_id: str
    login_count: int
    last_login: int = 0


@dataclass
class UserV3:
    """Renamed, widened, added, dropped, since the first version."""

    user_id: str
    total_logins: float
    last_login: int
    email: str | None


def rename(user: dict[str, Any]) -> dict[str, Any]:
    return {**user, "total_logins": user["login_count"], "email": None}


def add(user: dict[str, Any]) -> dict[str, Any]:
    return {"user_id": user["user_id"], "login_count": user["login_count"], "last_login": 7}


STEPS = (Migration(1, 2, add), Migration(2, 3, rename))
OLD = UserV1("ann", 3, "red")
WANTED = UserV3("ann", 3.0, 7, None)


def upgrader(
    kinds: Sequence[Any], migrations: Sequence[Migration], serializer: Serializer[Any] | None = None
) -> Upgrader:
    forms = {
        version: StoredForm(signature_of(kind), serializer_for(kind).name)
        for version, kind in enumerate(kinds, 1)
    }
    return Upgrader(
        kinds[-1], forms, migrations, serializer=serializer or serializer_for(kinds[-1]), ref=NAMED
    )


def test_each_version_is_brought_up_through_the_chain() -> None:
    """Case 14: v1 → v2 → v3, added, renamed, dropped, widened."""
    reader = upgrader([UserV1, UserV2, UserV3], STEPS)
    assert reader.decode(1, serializer_for(UserV1).encode(OLD)) == WANTED
    assert reader.decode(2, serializer_for(UserV2).encode(UserV2("ann", 3, 7))) == WANTED
    assert reader.decode(3, serializer_for(UserV3).encode(WANTED)) == WANTED
    assert type(reader.decode(1, serializer_for(UserV1).encode(OLD)).total_logins) is float


def test_a_step_may_take_the_old_class_and_give_the_new_one() -> None:
    steps = (
        Migration(1, 2, lambda user: UserV2(user.user_id, user.login_count, 7), source=UserV1),
        Migration(2, 3, rename),
    )
    reader = upgrader([UserV1, UserV2, UserV3], steps)
    assert reader.decode(1, serializer_for(UserV1).encode(OLD)) == WANTED
    late = (
        STEPS[0],
        Migration(2, 3, lambda user: UserV3(user.user_id, 3, user.last_login, None), source=UserV2),
    )
    reader = upgrader([UserV1, UserV2, UserV3], late)
    assert reader.decode(1, serializer_for(UserV1).encode(OLD)) == WANTED


def test_a_step_may_jump_over_versions() -> None:
    steps = (Migration(1, 3, lambda user: rename(add(user))), Migration(2, 3, rename))
    reader = upgrader([UserV1, UserV2, UserV3], steps)
    assert reader.decode(1, serializer_for(UserV1).encode(OLD)) == WANTED


def test_defaults_dropped_fields_and_wider_numbers_need_no_function() -> None:
    reader = upgrader([UserV1, UserV2], (Migration(1, 2),))
    assert reader.decode(1, serializer_for(UserV1).encode(OLD)) == UserV2("ann", 3, 0)
    wider = upgrader([int, float], (Migration(1, 2),))
    assert wider.decode(1, serializer_for(int).encode(3)) == 3.0


def test_plain_values_are_migrated_as_they_are() -> None:
    reader = upgrader([int, Decimal], (Migration(1, 2, lambda cents: Decimal(cents) / 100),))
    assert reader.decode(1, serializer_for(int).encode(150)) == Decimal("1.5")
    listed = upgrader([str, list[str]], (Migration(1, 2, str.split),))
    assert listed.decode(1, serializer_for(str).encode("a b")) == ["a", "b"]


def test_another_serializer_is_a_version_like_any_other() -> None:
    forms = {1: StoredForm(signature_of(UserV2), "json"), 2: StoredForm(signature_of(UserV2), "msgpack")}
    reader = Upgrader(UserV2, forms, (Migration(1, 2),), serializer=serializer_for(UserV2), ref=NAMED)
    payload = JsonSerializer(UserV2).encode(UserV2("bob", 1))
    assert reader.decode(1, payload) == UserV2("bob", 1)


def test_bytes_of_an_unknown_serializer_are_refused_at_the_start() -> None:
    forms = {1: StoredForm({"other": "Thing"}, "theirs"), 2: StoredForm("int", "int64")}
    with pytest.raises(StateMismatch, match="serializer 'theirs', which only its own version can read"):
        Upgrader(int, forms, (Migration(1, 2),), serializer=serializer_for(int), ref=NAMED)


def test_a_missing_step_is_refused() -> None:
    """Case 14: refused at start."""
    with pytest.raises(
        StateMismatch, match=r"no migration leads from version 2 towards 3. Add Migration\(2, 3"
    ):
        migration_paths(STEPS[:1], [1, 2], 3, NAMED)
    with pytest.raises(
        StateMismatch, match="holds values of version 1, and no migration leads from version 1"
    ):
        migration_paths(STEPS[1:], [1, 2], 3, NAMED)
    assert migration_paths(STEPS[1:], [2, 3], 3, NAMED) == {2: (STEPS[1],), 3: ()}


def test_a_version_newer_than_the_code_is_refused() -> None:
    """Case 14: refused at start."""
    with pytest.raises(StateMismatch, match="written in version 3, and this code knows version 2"):
        migration_paths(STEPS[:1], [1, 2, 3], 2, NAMED)


@pytest.mark.parametrize("step", [Migration(2, 1), Migration(2, 2), Migration(0, 1), Migration(3, 4)])
def test_a_step_that_leads_nowhere_is_refused(step: Migration) -> None:
    with pytest.raises(StateInvalid, match="does not lead up to its version 3"):
        migration_paths([step], [1], 3, NAMED)


def test_two_steps_from_one_version_are_refused() -> None:
    with pytest.raises(StateInvalid, match="not the only one from version 1"):
        migration_paths([Migration(1, 2), Migration(1, 3)], [1], 3, NAMED)


def test_what_a_migration_makes_is_checked() -> None:
    reader = upgrader([UserV1, UserV2], (Migration(1, 2, lambda _user: {"user_id": 5}),))
    with pytest.raises(ValueInvalid, match="version 1 of state 'user' of operator 'logins': it became"):
        reader.decode(1, serializer_for(UserV1).encode(OLD))


def test_bytes_of_a_version_that_never_wrote_are_corrupt() -> None:
    reader = upgrader([UserV1, UserV2], (Migration(1, 2),))
    with pytest.raises(StorageCorrupt, match="version 9 was never written"):
        reader.decode(9, b"")
    with pytest.raises(StorageCorrupt):
        reader.decode(1, b"\x81")
