from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidegate.cli.checks.home import (
    check_address,
    check_backups,
    check_home,
    check_log,
    check_rights,
    check_settings,
    check_token,
    check_upgrade_copies,
)
from tidegate.storage.home.home import Home


@pytest.fixture
def made(home: Path) -> Path:
    return Home.open(home, lambda: "a-token-that-is-long-enough").path


def test_a_whole_home_is_fine(made: Path) -> None:
    for found in (
        check_home(made),
        check_rights(made, os.getuid()),
        check_token(made),
        check_upgrade_copies(made),
    ):
        assert (found.state, found.fix) == ("ok", ""), found


def test_a_home_that_is_not_there_is_a_warning(home: Path) -> None:
    found = check_home(home)
    assert (found.state, "tidegate up" in found.fix) == ("warn", True)
    home.mkdir()
    assert check_home(home).state == "warn"


def test_a_folder_of_someone_else_is_no_home(home: Path) -> None:
    home.mkdir()
    (home / "thesis.tex").touch()
    found = check_home(home)
    assert (found.state, "thesis.tex" in found.found) == ("fail", True)
    (home / "thesis.tex").rename(home.parent / "file")
    assert check_home(home.parent / "file").state == "fail"


@pytest.mark.parametrize(
    ("layout", "state"), [('{"layout": 99}', "fail"), ('{"layout": 1}', "warn"), ("{", "fail")]
)
def test_a_home_of_another_layout_is_judged_by_its_age(made: Path, layout: str, state: str) -> None:
    (made / "layout.json").write_text(layout, encoding="utf-8")
    found = check_home(made)
    assert (found.state, bool(found.fix)) == (state, True)


def test_a_folder_that_is_gone_is_named(made: Path) -> None:
    (made / "pipelines").rmdir()
    found = check_home(made)
    assert (found.state, "pipelines" in found.found, str(made / "pipelines") in found.fix) == (
        "fail",
        True,
        True,
    )


@pytest.mark.parametrize("file", ["admin.token", "run/pipelines.token"])
def test_a_token_that_others_can_read_fails_with_the_command_that_mends_it(made: Path, file: str) -> None:
    token = made / file
    token.touch()
    token.chmod(0o640)
    found = check_rights(made, os.getuid())
    assert (found.state, found.fix) == ("fail", f"chmod 600 {token}")
    token.chmod(0o600)
    assert check_rights(made, os.getuid()).state == "ok"


def test_a_catalog_that_others_can_read_fails(made: Path) -> None:
    file = made / "catalog" / "catalog.db"
    file.touch()
    file.chmod(0o644)
    assert check_rights(made, os.getuid()).fix == f"chmod 600 {file}"


def test_a_home_that_others_can_change_fails_and_one_they_can_read_is_a_warning(made: Path) -> None:
    made.chmod(0o777)
    assert check_rights(made, os.getuid()).state == "fail"
    made.chmod(0o755)
    found = check_rights(made, os.getuid())
    assert (found.state, str(made) in found.fix) == ("warn", True)


def test_a_home_of_another_user_fails(made: Path) -> None:
    found = check_rights(made, os.getuid() + 1)
    assert (found.state, "chown" in found.fix) == ("fail", True)


@pytest.mark.parametrize("text", ["short", "ünïcödé-token-that-is-long"])
def test_a_token_that_cannot_be_used_fails(made: Path, text: str) -> None:
    (made / "admin.token").write_text(text, encoding="utf-8")
    assert check_token(made).state == "fail"


def test_an_address_whose_server_is_gone_is_a_warning(made: Path) -> None:
    assert check_address(made, None).state == "ok"
    Home(made).write_address("http://127.0.0.1:1", 999_999)
    stale = check_address(made, None)
    assert (stale.state, "http://127.0.0.1:1" in stale.found) == ("warn", True)
    assert check_address(made, 999_999).state == "ok"


def test_a_server_that_has_not_said_where_it_answers_is_a_warning(made: Path) -> None:
    assert check_address(made, os.getpid()).state == "warn"


def test_a_damaged_address_fails_with_the_file_to_remove(made: Path) -> None:
    file = made / "run" / "server.json"
    file.write_text("{", encoding="utf-8")
    found = check_address(made, None)
    assert (found.state, f"rm {file}" in found.fix) == ("fail", True)


def test_every_wrong_setting_is_named(made: Path) -> None:
    (made / "tidegate.toml").write_text(
        "lonely = 1\n[server]\nprot = 1\nport = 'x'\nhost = '0.0.0.0'\n[query]\nthreads = 0\n",
        encoding="utf-8",
    )
    environ = {"TIDEGATE_SERVER_PORTT": "1", "TIDEGATE_LOG_LEVEL": "loud", "TIDEGATE_HOME": "x", "OTHER": "y"}
    found = check_settings(made, environ)
    assert found.state == "fail"
    for part in ("lonely", "server.prot: ", "server.port: ", "query.threads: ", "TIDEGATE_SERVER_PORTT: "):
        assert part in found.found
    assert "TIDEGATE_LOG_LEVEL: " in found.found
    assert "did you mean 'server.port'" in found.found
    assert "host" not in found.found
    assert "TIDEGATE_HOME" not in found.found


def test_a_settings_file_that_is_not_toml_fails_and_none_is_fine(made: Path) -> None:
    assert check_settings(made, {}).state == "ok"
    (made / "tidegate.toml").write_text("[server\n", encoding="utf-8")
    assert "not TOML" in check_settings(made, {}).found
    (made / "tidegate.toml").write_bytes(b"\xff")
    assert check_settings(made, {}).state == "fail"


def test_kept_copies_are_counted_by_what_nothing_else_shares(made: Path) -> None:
    copy = made / "kept" / "layout-1-20260131T080000.000000Z"
    copy.mkdir()
    (copy / "own").write_bytes(b"x" * 5000)
    (copy / "shared").write_bytes(b"x" * 90_000)
    os.link(copy / "shared", made / "engine" / "shared")
    found = check_upgrade_copies(made)
    assert (found.state, "5.0 KB" in found.found, copy.name in found.found) == ("ok", True, True)
    (made / "kept" / "layout-1-x.partial").mkdir()
    assert check_upgrade_copies(made).state == "warn"


def test_a_frozen_copy_is_left_behind_only_where_no_server_packs_it(made: Path) -> None:
    assert check_backups(made, server_runs=False).state == "ok"
    copy = made / "run" / "backups" / "abc"
    copy.mkdir(parents=True)
    assert check_backups(made, server_runs=True).state == "ok"
    found = check_backups(made, server_runs=False)
    assert (found.state, found.fix) == ("warn", f"rm -r {copy}")


RUNS = """2026-01-31T08:00:00.000Z INFO tidegate.server.serve: serving /h at http://127.0.0.1:8787
2026-01-31T08:00:01.000Z ERROR tidegate.server.app: GET /x failed
2026-01-31T09:00:00.000Z INFO tidegate.server.serve: serving home=/h url=http://127.0.0.1:8787
2026-01-31T09:00:01.000Z INFO tidegate.server.serve: no ERROR here
"""


def test_errors_of_the_last_run_alone_count(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    assert check_log(log).state == "ok"
    log.write_text(RUNS, encoding="utf-8")
    assert check_log(log).state == "ok"
    with log.open("a", encoding="utf-8") as file:
        file.write("2026-01-31T09:00:02.000Z ERROR tidegate.server.app: GET /y failed\nTraceback\n")
    found = check_log(log)
    assert (found.state, "1 error" in found.found, "GET /y failed" in found.found) == ("warn", True, True)


def test_errors_in_json_logs_count(tmp_path: Path) -> None:
    log = tmp_path / "worker.log"
    log.write_text(
        '{"time": "t", "level": "info", "message": "worker starting home=x pid=1"}\n'
        '{"time": "t", "level": "error", "message": "the pipeline fell"}\n'
        '{"error": {"code": "JAVA_MISSING", "message": "No Java"}, "pid": 7}\n',
        encoding="utf-8",
    )
    found = check_log(log)
    assert (found.state, "2 errors" in found.found, "JAVA_MISSING" in found.found) == ("warn", True, True)
