"""Names of users and tenants."""

from __future__ import annotations

import pytest

from tidegate.errors import NameInvalid
from tidegate.model.names import check_tenant_name, check_user_name, is_tenant_name, is_user_name


@pytest.mark.parametrize("name", ["bob", "B", "0", "bob@acme.example", "a-b_c.d", "x" * 128])
def test_user_names(name: str) -> None:
    assert check_user_name(name) == name
    assert is_user_name(name)


@pytest.mark.parametrize("name", ["", "-bob", ".", "@", "a b", "bob\n", "bób", "a/b", "system:x", "x" * 129])
def test_what_no_user_is_called(name: str) -> None:
    with pytest.raises(NameInvalid, match="user name"):
        check_user_name(name)


@pytest.mark.parametrize("name", ["default", "a", "acme-2", "x" * 63])
def test_tenant_names(name: str) -> None:
    assert check_tenant_name(name) == name
    assert is_tenant_name(name)


@pytest.mark.parametrize("name", ["", "2acme", "-a", "Acme", "a_b", "a.b", "a/b", "acme\n", "x" * 64])
def test_what_no_tenant_is_called(name: str) -> None:
    with pytest.raises(NameInvalid, match="tenant name"):
        check_tenant_name(name)
