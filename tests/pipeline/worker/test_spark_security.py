"""What keeps other users of the machine out of Spark: a secret at its ports, sockets in our own folder."""

from __future__ import annotations

import os
import socket
import stat
import struct
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
import pytest

from tidegate.pipeline.worker.spark_security import (
    DAEMON_MODULE,
    FALLBACK_PREFIX,
    SOCKET_FOLDER_BYTES_MAX,
    is_local,
    make_private_folder,
    remove_private_folder,
    security_conf,
)
from tidegate.pipeline.worker.spark_session import SessionSettings, jvm_of, session_conf

ANSWER_SECONDS_MAX = 60.0


def _rpc_without_a_secret(port: int) -> bytes:
    """Ask an endpoint of Spark something, as a program of another user could; return the answer."""

    def text(value: str) -> bytes:
        return struct.pack(">H", len(value)) + value.encode()

    null_object = b"\xac\xed\0\5p"  # of Java's serialization
    receiver = b"\1" + text("127.0.0.1") + struct.pack(">i", port) + text("endpoint-verifier")
    body = b"\0" + receiver + null_object
    request = struct.pack(">bqi", 3, 7, len(body)) + body
    with socket.create_connection(("127.0.0.1", port), ANSWER_SECONDS_MAX) as connection:
        connection.sendall(struct.pack(">q", 8 + len(request)) + request)
        answer = b""
        while b"SaslMessage" not in answer and b"RpcFailure" not in answer:
            part = connection.recv(65_536)
            if not part:
                break
            answer += part
    return answer


@pytest.mark.spark
def test_ports_of_spark_take_no_objects_from_others(spark: Any) -> None:
    driver = int(spark.sparkContext.getConf().get("spark.driver.port"))
    environment = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get()
    blocks = environment.blockManager().blockManagerId().port()
    for port in (driver, blocks):
        assert b"Expected SaslMessage" in _rpc_without_a_secret(port)


@pytest.mark.spark
def test_the_secret_is_in_no_command_line_and_no_setting(spark: Any) -> None:
    conf = dict(spark.sparkContext.getConf().getAll())
    assert conf["spark.authenticate"] == "true"
    assert not [name for name in conf if "secret" in name]
    secret = spark.sparkContext._jvm.org.apache.spark.SparkEnv.get().securityManager().getSecretKey()
    assert len(secret) >= 32
    jvm = psutil.Process(jvm_of(spark).pid)
    for program in (jvm, *jvm.children(recursive=True)):
        with suppress(psutil.ZombieProcess, psutil.NoSuchProcess):  # it has ended meanwhile
            assert not [word for word in program.cmdline() if secret in word]


@pytest.mark.spark
def test_python_workers_listen_on_sockets_that_only_this_user_reaches(spark: Any) -> None:
    from pyspark.sql.functions import udf

    plus_one = udf(lambda number: number + 1, "long")
    assert [row[0] for row in spark.range(3).select(plus_one("id")).collect()] == [1, 2, 3]
    jvm = psutil.Process(jvm_of(spark).pid)
    daemons = [child for child in jvm.children() if "python" in child.name()]
    assert daemons
    for daemon in daemons:
        assert not [found for found in daemon.net_connections("inet") if found.status == psutil.CONN_LISTEN]
    folder = Path(spark.sparkContext.getConf().get("spark.python.unix.domain.socket.dir"))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert [entry for entry in folder.iterdir() if stat.S_ISSOCK(entry.stat().st_mode)]
    java = getattr(spark.sparkContext._jvm, "java.lang.System")
    assert java.getProperty("java.io.tmpdir") == str(folder)


def test_a_folder_that_fits_no_socket_or_option_is_elsewhere(tmp_path: Path) -> None:
    for number, name in enumerate(("a b", "a'b", "long" * 20)):
        scratch = tmp_path / str(number) / name
        scratch.mkdir(parents=True)
        folder = make_private_folder(scratch)
        assert folder.name.startswith(FALLBACK_PREFIX)
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
        options = session_conf(SessionSettings(), scratch, folder)["spark.driver.extraJavaOptions"]
        assert [option[:2] for option in options.split(" ")] == ["-D", "-D"]
        assert not set(options) & set("'\"\\")
        remove_private_folder(scratch)
        assert not folder.exists()


def test_a_short_folder_is_in_the_scratch_folder_and_has_room_for_a_socket(tmp_path: Path) -> None:
    scratch = Path(os.path.relpath(tmp_path))
    folder = make_private_folder(scratch)
    try:
        if len(str(tmp_path / "tmp")) <= SOCKET_FOLDER_BYTES_MAX:
            assert folder == tmp_path / "tmp"
        longest = str(folder).ljust(SOCKET_FOLDER_BYTES_MAX, "x")
        with socket.socket(socket.AF_UNIX) as listening, pytest.raises(FileNotFoundError):
            listening.bind(f"{longest}/.{'0' * 36}.sock")  # no such folder, and not: too long
    finally:
        remove_private_folder(scratch)


def test_a_link_to_a_folder_that_is_not_ours_is_left(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "tmp").symlink_to(tmp_path / "precious")
    remove_private_folder(tmp_path)
    assert (tmp_path / "precious").is_dir()


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[*,4]"])
def test_a_local_master_has_a_secret(master: str, tmp_path: Path) -> None:
    assert is_local(master)
    assert security_conf(master, tmp_path)["spark.authenticate"] == "true"


@pytest.mark.parametrize("master", ["spark://127.0.0.1:7077", "local-cluster[2,1,1024]", "yarn", "k8s://x"])
def test_a_cluster_keeps_its_own_settings(master: str, tmp_path: Path) -> None:
    assert not is_local(master)
    assert security_conf(master, tmp_path) == {}
    conf = session_conf(SessionSettings(extra={"spark.master": master}), tmp_path, tmp_path)
    assert not [name for name in conf if "authenticate" in name or "unix" in name]


@pytest.mark.parametrize(("module", "quiet"), [(DAEMON_MODULE, True), ("pyspark.daemon", False)])
def test_a_worker_whose_spark_goes_away_ends_without_a_traceback(
    tmp_path_factory: pytest.TempPathFactory, module: str, *, quiet: bool
) -> None:
    folder = make_private_folder(tmp_path_factory.mktemp("d"))
    environ = os.environ | {
        "PYTHON_UNIX_DOMAIN_ENABLED": "true",
        "PYTHON_WORKER_FACTORY_SOCK_DIR": str(folder),
        "PYTHON_DAEMON_KILL_WORKER_ON_FLUSH_FAILURE": "1",
        "SPARK_REUSE_WORKER": "1",
    }
    daemon = subprocess.Popen(
        [sys.executable, "-m", module, "pyspark.worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=environ,
    )
    assert daemon.stdin is not None
    assert daemon.stdout is not None
    length = struct.unpack(">i", daemon.stdout.read(4))[0]
    path = daemon.stdout.read(length).decode()
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        pid = struct.unpack(">i", connection.recv(4, socket.MSG_WAITALL))[0]
        worker = psutil.Process(pid)
    worker.wait(ANSWER_SECONDS_MAX)
    _, written = daemon.communicate(timeout=ANSWER_SECONDS_MAX)  # closes its input, which ends it
    assert (b"BrokenPipeError" in written) is not quiet, written
