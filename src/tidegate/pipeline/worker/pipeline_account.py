"""The account of pipelines: a user of the home's first tenant that may read and write, and no more.

The worker has the token of the administrator, to report what runs. Pipelines have another: the user
`pipelines`, whose token is in `run/pipelines.token`. Sources, sinks and `tidegate.connect()` in a pipeline
find it by a variable of the environment. It is a user like others: an administrator may change its roles, or
disable it, and then the pipelines are refused; one that is removed is created again.

A pipeline is code of the same operating-system user, which may read `admin.token`: this guards against
mistakes and against what a pipeline lets others do, not against the pipeline itself.
"""

from __future__ import annotations

import logging

from tidegate.errors import (
    TenantDisabled,
    TidegateError,
    TokenWrong,
    Unavailable,
    UserDisabled,
    UserExists,
)
from tidegate.model.access import Role
from tidegate.model.clock import Clock
from tidegate.pipeline.topic.client import ServerClient, ServerLocation
from tidegate.storage.files import write_file_atomically
from tidegate.storage.home.home import Home

# One name for ever: leases and sequences of producers belong to the user who began them.
ACCOUNT_USER = "pipelines"
ACCOUNT_ROLES = (Role.READER, Role.WRITER)
TOKEN_LABEL = "worker"  # noqa: S105 - a label
# A token that was revoked is replaced within this time.
CHECK_SECONDS = 10.0
CALL_SECONDS_MAX = 5.0

log = logging.getLogger("tidegate.worker")


class PipelineAccount:
    """Keeps the token in the file valid. One thread calls it."""

    def __init__(self, home: Home, clock: Clock) -> None:
        self._home = home
        self._clock = clock
        self._due_seconds = clock.monotonic_seconds()
        self._refusal = ""

    def renew(self) -> None:
        """Issue a token if the one in the file is not accepted; the next call does, if the server is away."""
        now_seconds = self._clock.monotonic_seconds()
        if now_seconds < self._due_seconds:
            return
        try:
            if not self._is_accepted():
                self._issue()
        except Unavailable:
            return  # the next call tries again: nothing runs without a server
        except (TidegateError, OSError) as problem:
            if str(problem) != self._refusal:
                log.warning("no token for pipelines user=%s error=%r", ACCOUNT_USER, str(problem))
            self._refusal = str(problem)
        else:
            self._refusal = ""
        self._due_seconds = now_seconds + CHECK_SECONDS

    def _is_accepted(self) -> bool:
        try:
            token = self._home.pipeline_token_path.read_text(encoding="ascii").strip()
        except (FileNotFoundError, UnicodeDecodeError):
            return False
        try:
            me = self._client(ServerLocation(token=token, home=str(self._home.path))).get_json("me")
        except TokenWrong:  # or expired, or revoked
            return False
        except (UserDisabled, TenantDisabled):
            return True  # an administrator's decision
        return bool(me["user"] == ACCOUNT_USER)

    def _issue(self) -> None:
        admin = self._client(ServerLocation(home=str(self._home.path), as_admin=True))
        try:
            admin.post_json("users", {"name": ACCOUNT_USER, "roles": [str(role) for role in ACCOUNT_ROLES]})
        except UserExists:
            pass
        else:
            log.info("user of pipelines created user=%s", ACCOUNT_USER)
        body = {"label": TOKEN_LABEL, "lifetimeSeconds": None}
        token = str(admin.post_json(f"users/{ACCOUNT_USER}/tokens", body)["token"])
        write_file_atomically(self._home.pipeline_token_path, f"{token}\n".encode("ascii"), mode=0o600)
        log.info("token of pipelines issued user=%s", ACCOUNT_USER)

    def _client(self, location: ServerLocation) -> ServerClient:
        return ServerClient(location, 0, CALL_SECONDS_MAX, self._clock)
