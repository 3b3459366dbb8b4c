"""Which tests run in one process, and which of them first, when several processes share them."""

from __future__ import annotations

import fnmatch
from typing import Any

from xdist.scheduler import LoadFileScheduling  # type: ignore[import-untyped]

# Each process that runs one of these files starts a JVM for all of them. Two such processes are quicker than
# one, and three would be slower, and need the memory of three.
SPARK: dict[str, tuple[str, ...]] = {
    "operators in Spark": (
        "tests/pipeline/stateful/test_keyed*.py",
        "tests/pipeline/stateful/test_dedup*.py",
    ),
    "doors to Spark": (
        "tests/pipeline/worker/test_worker.py",
        "tests/pipeline/topic/test_source.py",
        "tests/pipeline/topic/test_sink.py",
        "tests/pipeline/test_examples.py",
        "tests/pipeline/worker/test_spark_session.py",
        "tests/pipeline/test_jars.py",
        "tests/pipeline/stateful/test_key_digests.py",
        "tests/pipeline/worker/test_definitions.py",
        "tests/pipeline/stateful/test_worker_setup.py",
        "tests/checkpoint/keys/test_spark_hash.py",
    ),
}
# By how long they take: first as crash tests, of which these are most, then as all others.
LONGEST = (
    "tests/faults/test_faults.py",
    "tests/crash/test_crash.py",
    "tests/crash/test_topics.py",
    "tests/faults/test_dedup_faults.py",
    "tests/upkeep/backup/test_pipeline.py",
    "tests/test_docs.py",
    "tests/test_wheel.py",
    *SPARK["operators in Spark"],
    *SPARK["doors to Spark"],
    "tests/pipeline/worker/test_worker_alone.py",
    "tests/cli/commands/test_up.py",
    "tests/upkeep/backup/test_commands.py",
    "tests/server/openapi/test_document.py",
    "tests/cli/commands/test_doctor.py",
    "tests/cli/test_main.py",
    "tests/server/test_serve.py",
    "tests/server/runtime/test_missing_stores.py",
    "tests/server/runtime/test_postgres.py",
    "tests/server/runtime/test_disk_full.py",
    "tests/server/*",
    "tests/cli/*",
    "tests/upkeep/*",
)


def longest_first(nodeid: str) -> int:
    """Return the place of a test's file in the order of the files; those that are not named come last."""
    file = nodeid.partition("::")[0]
    return next((place for place, name in enumerate(LONGEST) if fnmatch.fnmatch(file, name)), len(LONGEST))


class ByFile(LoadFileScheduling):  # type: ignore[misc]
    """A file runs in one process, in the order that we collect them; files that need Spark stay together."""

    def __init__(self, config: Any, log: Any) -> None:
        super().__init__(config, log)
        # It would begin with the files of most tests, which are not those that take longest.
        config.option.loadscopereorder = False

    def _split_scope(self, nodeid: str) -> str:
        file = super()._split_scope(nodeid)
        for name, files in SPARK.items():
            if any(fnmatch.fnmatch(file, one) for one in files):
                return name
        return str(file)
