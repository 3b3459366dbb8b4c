"""The defences of a Spark session against other users of the machine.

    spark.authenticate     without it, anybody on the machine may send Java objects to the driver's ports.
                           With a local master Spark makes a random secret that never leaves its process; one
                           in the configuration would be on the command line of the JVM, for all to read
    Unix domain sockets    between Java and its Python workers, in a folder that only this user may enter;
                           nobody else can connect, and a round trip is shorter than on TCP
    java.io.tmpdir         the same folder: Java unpacks the native libraries that it loads there

A cluster has its own secret, which its master and workers know: Spark's own settings have it, not ours. Its
executors may run as another user, so they keep to TCP.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from pathlib import Path

# Where the private folder of a session is: a folder, or a link to one.
PRIVATE_NAME = "tmp"
FALLBACK_PREFIX = "tidegate-spark-tmp-"
# Linux takes 107 bytes for the path of a socket; Spark appends "/.", a UUID and ".sock".
SOCKET_FOLDER_BYTES_MAX = 107 - len("/.sock") - 1 - 36
DAEMON_MODULE = "tidegate.pipeline.python_daemon"

_LOCAL_MASTER = re.compile(r"local(\[[^\]]*\])?")
# Spark splits options of Java at spaces and quotes.
_SPLIT_BY_SPARK = re.compile(r"[\s'\"\\]")


def is_local(master: str) -> bool:
    """True if a master runs its tasks in the JVM of the driver."""
    return _LOCAL_MASTER.fullmatch(master) is not None


def make_private_folder(scratch: Path) -> Path:
    """Create a folder with mode 0700 in a fresh scratch folder.

    Where its path is too long for a socket or has a space, it is in the temporary folder instead, with a link
    to it in the scratch folder, by which the next session finds and removes it.
    """
    folder = scratch.absolute() / PRIVATE_NAME
    if len(os.fsencode(folder)) <= SOCKET_FOLDER_BYTES_MAX and not _SPLIT_BY_SPARK.search(str(folder)):
        folder.mkdir(mode=0o700)
        return folder
    elsewhere = Path(tempfile.mkdtemp(prefix=FALLBACK_PREFIX))
    folder.symlink_to(elsewhere)
    return elsewhere


def remove_private_folder(scratch: Path) -> None:
    """Remove what is outside of a scratch folder and belongs to it."""
    link = scratch / PRIVATE_NAME
    if link.is_symlink():
        elsewhere = link.readlink()
        if elsewhere.name.startswith(FALLBACK_PREFIX):
            shutil.rmtree(elsewhere, ignore_errors=True)


def security_conf(master: str, folder: Path) -> dict[str, str]:
    """Return Spark's settings for a session on this machine; a cluster's come from its own configuration."""
    if not is_local(master):
        return {}
    return {
        "spark.authenticate": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.python.unix.domain.socket.dir": str(folder),
        "spark.python.daemon.module": DAEMON_MODULE,
    }
