from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.calls import alive
from tidegate.cli.supervision.supervisor import ChildPlan, ChildState, Supervisor, child_command
from tidegate.errors import PortInUse, StartRefused, StorageFull
from tidegate.model.clock import SystemClock
from tidegate.settings import SupervisorSettings
from tidegate.testing.clock import ManualClock

DEADLINE_SECONDS = 90.0
SLEEPER = "import time; time.sleep(600)"
STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("set", flush=True)
time.sleep(600)
"""
FALLER = "raise SystemExit(9)"
STOPS_WITH_PARENT = """
import time
from tidegate.cli.supervision.child import stop_with_parent
stop_with_parent(5)
time.sleep(600)
"""

Start = Callable[..., Supervisor]


def until(happened: Callable[[], object], step: Callable[[], object] = lambda: None) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not happened():
        assert time.monotonic() < deadline, "it did not happen in time"
        step()
        time.sleep(0.02)


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


@pytest.fixture
def supervisor(told: list[str], clock: ManualClock) -> Iterator[Supervisor]:
    settings = SupervisorSettings(backoff_seconds_min=0.5, backoff_seconds_max=4.0, stable_seconds=30.0)
    made = Supervisor(settings, clock, told.append)
    yield made
    made.stop(lambda: True, time.sleep)


def plan(tmp_path: Path, code: str, name: str = "server") -> ChildPlan:
    return ChildPlan(name, (sys.executable, "-c", code), tmp_path / "logs" / f"{name}.log")


def only(supervisor: Supervisor) -> ChildState:
    (state,) = supervisor.states()
    return state


def pid_of(state: ChildState) -> int:
    assert state.pid is not None
    return state.pid


def test_a_killed_child_is_started_again(tmp_path: Path, supervisor: Supervisor, clock: ManualClock) -> None:
    supervisor.start(plan(tmp_path, SLEEPER))
    first = pid_of(only(supervisor))
    os.kill(first, signal.SIGKILL)
    until(lambda: only(supervisor).state == "waiting", supervisor.tick)
    clock.advance(0.4)
    supervisor.tick()
    assert only(supervisor).state == "waiting"
    clock.advance(0.1)
    supervisor.tick()
    assert only(supervisor).state == "running"
    assert pid_of(only(supervisor)) != first
    assert only(supervisor).restarts == 1


def test_the_pause_doubles_up_to_the_longest(
    tmp_path: Path, supervisor: Supervisor, clock: ManualClock
) -> None:
    supervisor.start(plan(tmp_path, FALLER))
    pauses = []
    for _ in range(5):
        until(lambda: only(supervisor).state == "waiting", supervisor.tick)
        pauses.append(only(supervisor).next_start_seconds)
        clock.advance(pauses[-1])
        supervisor.tick()
    assert pauses == [0.5, 1.0, 2.0, 4.0, 4.0]


def test_a_child_that_stayed_up_starts_at_the_first_pause_again(
    tmp_path: Path, supervisor: Supervisor, clock: ManualClock
) -> None:
    supervisor.start(plan(tmp_path, SLEEPER))
    for expected, stayed_seconds in ((0.5, 1.0), (1.0, 1.0), (0.5, 31.0)):
        clock.advance(stayed_seconds)
        os.kill(pid_of(only(supervisor)), signal.SIGKILL)
        until(lambda: only(supervisor).state == "waiting", supervisor.tick)
        assert only(supervisor).next_start_seconds == expected
        clock.advance(expected)
        supervisor.tick()


def test_an_error_that_another_program_wrote_into_the_log_is_not_the_childs(
    tmp_path: Path, supervisor: Supervisor, told: list[str]
) -> None:
    foreign = json.dumps({"error": {"code": "HOME_LOCKED", "message": "foreign", "hint": ""}, "pid": 1})
    supervisor.start(plan(tmp_path, f"print({foreign!r}); print('{{\"error\" torn'); raise SystemExit(9)"))
    until(lambda: only(supervisor).state == "waiting", supervisor.tick)
    assert "its log is" in told[-1]


def test_a_child_signs_its_errors(tmp_path: Path, supervisor: Supervisor, told: list[str]) -> None:
    code = (
        "from tidegate.cli.output.errors import report_error\n"
        "from tidegate.errors import StorageFull\n"
        "report_error(StorageFull(path='here', free_bytes=0).to_wire()['error'], as_json=True)\n"
        "raise SystemExit(9)"
    )
    supervisor.start(plan(tmp_path, code))
    until(lambda: only(supervisor).state == "waiting", supervisor.tick)
    assert "here" in told[-1]
    assert '"pid": ' in (tmp_path / "logs" / "server.log").read_text(encoding="utf-8")


def test_what_a_killed_child_leaves_behind_goes_with_it(tmp_path: Path, supervisor: Supervisor) -> None:
    code = (
        "import subprocess, sys, time\n"
        f"left = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}], start_new_session=True)\n"
        "print(left.pid, flush=True)\n"
        "time.sleep(600)"
    )
    supervisor.start(plan(tmp_path, code))
    log = tmp_path / "logs" / "server.log"
    until(lambda: log.read_text(encoding="utf-8").strip())
    left = int(log.read_text(encoding="utf-8"))
    os.kill(pid_of(only(supervisor)), signal.SIGKILL)
    until(lambda: only(supervisor).state == "waiting", supervisor.tick)
    until(lambda: not alive(left))
    assert not alive(left)


def test_a_child_that_cannot_start_here_raises_its_own_error(
    tmp_path: Path, supervisor: Supervisor, told: list[str]
) -> None:
    wire = json.dumps(PortInUse(host="127.0.0.1", port=8787, other=8788).to_wire())
    code = f"import sys; print('booting'); print({wire!r}); sys.exit(3)"
    supervisor.start(plan(tmp_path, code))
    with pytest.raises(PortInUse, match=r"Port 8787 on 127.0.0.1 is taken") as caught:
        until(lambda: False, supervisor.tick)
    assert caught.value.hint.endswith("--port 8788.")
    assert told == ["server cannot start here"]


def test_the_error_of_an_earlier_run_is_not_taken_for_this_one(
    tmp_path: Path, supervisor: Supervisor
) -> None:
    log = tmp_path / "logs" / "server.log"
    log.parent.mkdir()
    log.write_text(json.dumps(PortInUse(host="h", port=1, other=2).to_wire()) + "\n", encoding="utf-8")
    supervisor.start(plan(tmp_path, "raise SystemExit(3)"))
    with pytest.raises(StartRefused, match="The server cannot start") as caught:
        until(lambda: False, supervisor.tick)
    assert str(log) in caught.value.hint


def test_children_stop_in_the_opposite_order(tmp_path: Path, told: list[str]) -> None:
    made = Supervisor(SupervisorSettings(), SystemClock(), told.append)
    for name in ("server", "worker", "source"):
        made.start(plan(tmp_path, SLEEPER, name))
    pids = [pid_of(state) for state in made.states()]
    made.stop(lambda: False, time.sleep)
    assert [text.split()[0] for text in told] == ["source", "worker", "server"]
    assert not any(alive(pid) for pid in pids)
    assert {state.state for state in made.states()} == {"stopped"}


def test_a_child_that_does_not_stop_is_killed_after_the_grace(tmp_path: Path, told: list[str]) -> None:
    made = Supervisor(SupervisorSettings(grace_seconds=0.3), SystemClock(), told.append)
    made.start(plan(tmp_path, STUBBORN))
    pid = pid_of(only(made))
    log = tmp_path / "logs" / "server.log"
    until(lambda: "set" in log.read_text(encoding="utf-8"))
    made.stop(lambda: False, time.sleep)
    assert told == ["server killed"]
    assert not alive(pid)


def test_a_second_request_to_stop_kills_at_once(tmp_path: Path, told: list[str]) -> None:
    made = Supervisor(SupervisorSettings(grace_seconds=600), SystemClock(), told.append)
    made.start(plan(tmp_path, STUBBORN))
    log = tmp_path / "logs" / "server.log"
    until(lambda: "set" in log.read_text(encoding="utf-8"))
    asked = iter([False, False, True])
    made.stop(lambda: next(asked), time.sleep)
    assert told == ["server killed"]


def test_a_child_that_waits_for_its_restart_is_not_started_by_a_stop(
    tmp_path: Path, supervisor: Supervisor, clock: ManualClock
) -> None:
    supervisor.start(plan(tmp_path, FALLER))
    until(lambda: only(supervisor).state == "waiting", supervisor.tick)
    supervisor.stop(lambda: False, time.sleep)
    clock.advance(60)
    supervisor.tick()
    assert only(supervisor).state == "stopped"


def test_children_of_a_killed_supervisor_stop_by_themselves(tmp_path: Path) -> None:
    code = f"""
import sys, time
from pathlib import Path
from tidegate.cli.supervision.supervisor import ChildPlan, Supervisor
from tidegate.model.clock import SystemClock
from tidegate.settings import SupervisorSettings
made = Supervisor(SupervisorSettings(), SystemClock(), print)
for name in ("server", "worker"):
    made.start(ChildPlan(name, (sys.executable, "-c", {STOPS_WITH_PARENT!r}), Path({str(tmp_path)!r}) / name))
print(*[state.pid for state in made.states()], flush=True)
time.sleep(600)
"""
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdout is not None
        pids = [int(word) for word in parent.stdout.readline().split()]
        assert len(pids) == 2
        assert all(alive(pid) for pid in pids)
        parent.kill()
    until(lambda: not any(alive(pid) for pid in pids))


def test_the_command_of_a_child_names_home_and_parent() -> None:
    words = child_command("serve", "/usr/bin/python3", Path("/srv/tide"), ("--port", "9"))
    assert words[:4] == ("/usr/bin/python3", "-m", "tidegate", "serve")
    assert words[4:] == ("--home", "/srv/tide", "--json", "--stop-with-parent", "--port", "9")


def test_a_fall_is_told_with_the_error_that_the_child_wrote(
    tmp_path: Path, supervisor: Supervisor, told: list[str]
) -> None:
    wire = json.dumps(StorageFull(path="/srv/tide", free_bytes=7).to_wire())
    supervisor.start(plan(tmp_path, f"print({wire!r}); raise SystemExit(1)"))
    until(lambda: only(supervisor).state == "waiting", supervisor.tick)
    (text,) = told
    assert text.startswith(
        "server ended (exit code 1), starts again in 0.5 s; No room on the disk under /srv/tide"
    )
