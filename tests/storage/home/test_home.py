"""The home folder: made whole or not at all, locked by one of a kind, refused when newer."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from tidegate.errors import HomeLocked, HomeTooNew, HomeUnusable
from tidegate.model.clock import SystemClock
from tidegate.storage.files import write_file_atomically
from tidegate.storage.home.home import FOLDERS, LAYOUT_VERSION, Home, ServerAddress
from tidegate.storage.home.locks import is_flocked, lock_path, running_pid
from tidegate.storage.home.upgrade import COPIES_FOLDER, upgrade_home


def _token() -> str:
    return "secret-token-of-the-test"


def test_a_new_home_has_every_folder_and_a_private_token(tmp_path: Path) -> None:
    home = Home.open(tmp_path / "deep" / "home", _token)
    assert {entry.name for entry in home.path.iterdir()} == {
        *FOLDERS,
        "admin.token",
        "home.id",
        "layout.json",
    }
    assert stat.S_IMODE(home.token_path.stat().st_mode) == 0o600
    assert {stat.S_IMODE((home.path / name).stat().st_mode) for name in (".", *FOLDERS)} == {0o700}
    assert home.read_token() == _token()
    assert len(home.home_id) == 16
    assert json.loads((home.path / "layout.json").read_text()) == {"layout": LAYOUT_VERSION}


def test_opening_again_keeps_the_token_and_the_id(tmp_path: Path) -> None:
    first = Home.open(tmp_path / "home", _token).home_id
    again = Home.open(tmp_path / "home", lambda: "another")
    assert again.read_token() == _token()
    assert again.home_id == first


def test_two_homes_have_two_ids(tmp_path: Path) -> None:
    texts = (f"random-text-number-{number}" for number in range(9))
    homes = [Home.open(tmp_path / name, lambda: next(texts)) for name in ("one", "two")]
    assert homes[0].home_id != homes[1].home_id


@pytest.mark.parametrize("content", [b"", b"xyz", b"\xff" * 16, b"0123456789ABCDEF"])
def test_a_damaged_id_is_named(tmp_path: Path, content: bytes) -> None:
    home = Home.open(tmp_path, _token)
    (home.path / "home.id").write_bytes(content)
    with pytest.raises(HomeUnusable, match=r"home\.id"):
        _ = home.home_id


def test_tables_of_a_tenant_stand_apart(tmp_path: Path) -> None:
    home = Home.open(tmp_path, _token)
    assert home.tenant_lake_path("default") == home.lake_path
    assert home.tenant_lake_path("acme") == home.path / "tenants" / "acme" / "lake"
    assert home.tenant_streams_path("default") == home.streams_path == home.path / "streams"
    assert home.tenant_streams_path("acme") == home.path / "tenants" / "acme" / "streams"


def test_a_home_from_before_streams_gets_their_folder_and_is_upgraded_no_further(tmp_path: Path) -> None:
    home = Home.open(tmp_path, _token)
    home.streams_path.rmdir()
    assert Home.existing(tmp_path).path == home.path
    again = Home.open(tmp_path, _token)
    assert stat.S_IMODE(again.streams_path.stat().st_mode) == 0o700
    assert list((again.path / COPIES_FOLDER).iterdir()) == [], "the layout is the same: nothing to copy"


def test_the_address_says_whom_to_trust_only_where_there_is_something_to_say(tmp_path: Path) -> None:
    home = Home.open(tmp_path, _token)
    home.write_address("http://127.0.0.1:1", 7)
    assert json.loads((home.run_path / "server.json").read_text()) == {"url": "http://127.0.0.1:1", "pid": 7}
    assert home.server_address() == ServerAddress("http://127.0.0.1:1", 7)
    home.write_address("https://127.0.0.1:1", 7, "/etc/ca.pem")
    assert home.server_address() == ServerAddress("https://127.0.0.1:1", 7, "/etc/ca.pem")


def test_a_home_that_was_interrupted_is_finished(tmp_path: Path) -> None:
    (tmp_path / "engine").mkdir()
    (tmp_path / "admin.token").write_text("kept-from-the-first-start\n")
    (tmp_path / f"layout.json.{os.getpid()}.new").write_text("{")
    assert Home.open(tmp_path, _token).read_token() == "kept-from-the-first-start"


def test_settings_may_be_there_before_the_home(tmp_path: Path) -> None:
    (tmp_path / "tidegate.toml").write_text("[server]\nport = 1\n")
    Home.open(tmp_path, _token)
    assert (tmp_path / "layout.json").exists()


def test_a_folder_with_other_things_is_refused_and_untouched(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("x")
    with pytest.raises(HomeUnusable, match=r"thesis\.tex"):
        Home.open(tmp_path, _token)
    assert [entry.name for entry in tmp_path.iterdir()] == ["thesis.tex"]


def test_a_home_that_cannot_be_made_is_not_left_half_made(tmp_path: Path) -> None:
    def broken() -> str:
        raise OSError(5, "the disk said no")

    with pytest.raises(HomeUnusable, match="the disk said no"):
        Home.open(tmp_path / "home", broken)
    assert not (tmp_path / "home").exists()


def _opened_by_another(path: Path, opened: list[str]) -> threading.Thread:
    """Start to open the same home; it may end before the first start goes on, and need not."""

    def open_it() -> None:
        home = Home.open(path, lambda: "token-of-the-second-start")
        opened.append(home.read_token() + home.home_id)

    thread = threading.Thread(target=open_it)
    thread.start()
    thread.join(0.5)
    return thread


def test_two_starts_that_make_one_home_have_one_token_and_one_id(tmp_path: Path) -> None:
    opened: list[str] = []
    threads: list[threading.Thread] = []

    def token() -> str:
        if not threads:
            threads.append(_opened_by_another(tmp_path / "home", opened))
        return "token-of-the-first-start"

    home = Home.open(tmp_path / "home", token)
    threads[0].join()
    assert opened == [home.read_token() + home.home_id]


@pytest.mark.parametrize("existed", [False, True])
def test_a_start_that_fails_takes_nothing_from_another_one(tmp_path: Path, existed: bool) -> None:
    opened: list[str] = []
    threads: list[threading.Thread] = []
    if existed:
        (tmp_path / "home").mkdir()

    def broken() -> str:
        threads.append(_opened_by_another(tmp_path / "home", opened))
        raise OSError(5, "the disk said no")

    with pytest.raises(HomeUnusable, match="the disk said no"):
        Home.open(tmp_path / "home", broken)
    threads[0].join()
    home = Home.existing(tmp_path / "home")
    assert opened == [home.read_token() + home.home_id]
    assert {entry.name for entry in home.path.iterdir()} >= set(FOLDERS)


def test_what_someone_put_into_a_home_that_cannot_be_made_stays(tmp_path: Path) -> None:
    def broken() -> str:
        (tmp_path / "home" / "lake" / "thesis.tex").write_text("x")
        raise OSError(5, "the disk said no")

    with pytest.raises(HomeUnusable, match="the disk said no"):
        Home.open(tmp_path / "home", broken)
    assert [path.name for path in tmp_path.rglob("*")] == ["home", "lake", "thesis.tex"]


def test_an_upgrade_that_another_start_has_done_is_not_done_again(tmp_path: Path) -> None:
    home = Home.open(tmp_path, _token)
    held: list[bool] = []

    def layout_of() -> int:
        held.extend(is_flocked(home.path / "locks" / f"{kind}.lock") for kind in ("server", "worker"))
        return LAYOUT_VERSION

    def finish() -> None:
        raise AssertionError("upgraded twice")

    upgrade_home(home.path, LAYOUT_VERSION, SystemClock(), layout_of, finish)
    assert held == [True, True]
    assert not list((home.path / COPIES_FOLDER).iterdir())


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    home = Home.open(tmp_path, _token)
    (home.path / "layout.json").write_text(json.dumps({"layout": 99}))
    with pytest.raises(HomeTooNew) as caught:
        Home.open(tmp_path, _token)
    assert caught.value.values["found"] == 99
    assert (home.path / "layout.json").read_text() == json.dumps({"layout": 99})
    assert not list((home.path / COPIES_FOLDER).iterdir())
    with pytest.raises(HomeTooNew):
        Home.existing(tmp_path)


def test_a_damaged_layout_is_named(tmp_path: Path) -> None:
    home = Home.open(tmp_path, _token)
    (home.path / "layout.json").write_text("{")
    with pytest.raises(HomeUnusable, match=r"layout\.json is damaged"):
        Home.open(tmp_path, _token)


def test_a_file_is_no_home(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    with pytest.raises(HomeUnusable):
        Home.open(tmp_path / "file", _token)


def test_a_second_of_a_kind_is_refused_with_the_holders_pid(tmp_path: Path) -> None:
    home = Home.open(tmp_path, _token)
    lock = home.lock("server")
    try:
        with pytest.raises(HomeLocked) as caught:
            Home.existing(tmp_path).lock("server")
        assert caught.value.values["pid"] == os.getpid()
        home.lock("worker").release()
    finally:
        lock.release()
    home.lock("server").release()


def test_a_holder_that_stops_is_waited_for(tmp_path: Path) -> None:
    home = Home.open(tmp_path, _token)
    lock = home.lock("server")
    lock.mark_stopping()
    steps: list[str] = []

    def release() -> None:
        steps.append("released")
        lock.release()

    later = threading.Timer(0.5, release)
    later.start()
    taken = home.lock("server", wait_seconds=60)
    assert steps == ["released"], "the lock was taken while its holder still had it"
    taken.release()
    later.join()


def test_a_holder_whose_supervisor_is_gone_is_waited_for(tmp_path: Path) -> None:
    """It has not noticed yet that it is to stop, and whoever starts anew is not refused for that."""
    home = Home.open(tmp_path, _token)
    path = lock_path(tmp_path, "server")
    lock = home.lock("server")
    supervisor = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
    lock.mark_supervised(supervisor.pid)
    assert running_pid(path) == os.getpid()
    with pytest.raises(HomeLocked) as caught:
        home.lock("server", wait_seconds=60)
    assert caught.value.values["pid"] == os.getpid()
    supervisor.kill()
    supervisor.communicate()
    assert running_pid(path) is None
    later = threading.Timer(0.5, lock.release)
    later.start()
    home.lock("server", wait_seconds=60).release()
    later.join()


def test_a_holder_that_stops_says_so_whatever_it_said_before(tmp_path: Path) -> None:
    home = Home.open(tmp_path, _token)
    lock = home.lock("server")
    assert running_pid(lock_path(tmp_path, "server")) == os.getpid()
    lock.mark_supervised(os.getppid())
    lock.mark_stopping()
    assert running_pid(lock_path(tmp_path, "server")) is None
    lock.release()
    # A shorter text than before leaves nothing of it.
    again = home.lock("server")
    assert lock_path(tmp_path, "server").read_text() == str(os.getpid())
    again.release()


def test_a_lock_inherited_by_a_child_is_waited_for_after_its_holder_died(tmp_path: Path) -> None:
    home = Home.open(tmp_path, _token)
    # A process takes the lock, leaves it to a child that lives until its stdin ends, and is killed.
    program = (
        "import os, subprocess, sys; from pathlib import Path; from tidegate.storage.home.home import Home\n"
        "lock = Home.existing(Path(sys.argv[1])).lock('worker')\n"
        "subprocess.Popen(['cat'], pass_fds=(lock.fd,))\n"
        "os.kill(os.getpid(), 9)\n"
    )
    holder = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE)
    assert holder.stdin is not None
    with holder.stdin as stdin:
        assert holder.wait() == -9
        with pytest.raises(HomeLocked):
            home.lock("worker", wait_seconds=0)
        later = threading.Timer(0.5, stdin.close)
        later.start()
        home.lock("worker", wait_seconds=60).release()
        later.join()


def test_atomic_replacement_leaves_no_spare_file_behind(tmp_path: Path) -> None:
    write_file_atomically(tmp_path / "f", b"one")
    write_file_atomically(tmp_path / "f", b"two")
    assert [(entry.name, entry.read_bytes()) for entry in tmp_path.iterdir()] == [("f", b"two")]
