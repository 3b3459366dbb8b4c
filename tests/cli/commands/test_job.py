from __future__ import annotations

import json
from pathlib import Path

from tests.cli.calls import tidegate
from tidegate.testing.server import running_server


def test_a_backup_is_a_job_that_is_listed_and_shown_with_its_history(home: Path, tmp_path: Path) -> None:
    with running_server(home):
        made = tidegate("backup", str(tmp_path / "home.tar"), home=home)
        assert made.returncode == 0, made.stderr
        (job,) = json.loads(tidegate("job", "list", "--state", "done", "--json", home=home).stdout)["jobs"]
        assert tidegate("job", "list", "--state", "failed", home=home).stdout == "No jobs.\n"
        assert job["id"] in tidegate("job", "list", "--kind", job["kind"], home=home).stdout
        shown = json.loads(tidegate("job", "show", job["id"], "--json", home=home).stdout)
        drawn = tidegate("job", "show", job["id"], home=home)
    assert shown["history"][-1]["state"] == "done"
    assert drawn.returncode == 0, drawn.stderr
    for word in (job["id"], job["kind"], "100 %", "running"):
        assert word in drawn.stdout
