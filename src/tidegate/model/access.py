"""Access control: roles and operations. Every door asks `check_allowed`, which alone decides.

    every role                        reads metadata
    StreamDataReader                  and reads data: SQL, consume, what Spark reads
    StreamDataWriter                  and writes: publish, INSERT, UPDATE, DELETE. It sees its own rows in
                                      USER and STREAM tables, and can query nothing else
    StreamDataAdmin                   both of the above, and creates, changes and deletes; acts as a user
    AdminPanelManagement              all of it, and accounts, the audit trail and jobs

Some operations are for administrators of the instance alone: those of the tenant `default` with
AdminPanelManagement. They may act in another tenant, by its name.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tidegate.errors import Forbidden, RequestInvalid

DEFAULT_TENANT = "default"
ADMIN_USER = "admin"


class Role(StrEnum):
    """What a user is for; a user may have several."""

    READER = "StreamDataReader"
    WRITER = "StreamDataWriter"
    ADMIN = "StreamDataAdmin"
    PANEL = "AdminPanelManagement"


# Short forms of the first three.
ROLE_SHORTS = {"reader": Role.READER, "writer": Role.WRITER, "admin": Role.ADMIN}


class Operation(StrEnum):
    """Everything that a door offers, as noun.verb; the audit trail uses the same words."""

    ME_SHOW = "me.show"
    STATUS_SHOW = "status.show"
    QUOTA_SHOW = "quota.show"
    DOCS_SHOW = "docs.show"
    PIPELINE_LIST = "pipeline.list"
    PIPELINE_SHOW = "pipeline.show"
    TOPIC_LIST = "topic.list"
    TOPIC_SHOW = "topic.show"
    TOPIC_CREATE = "topic.create"
    TOPIC_DELETE = "topic.delete"
    TOPIC_PUBLISH = "topic.publish"
    TOPIC_CONSUME = "topic.consume"
    TOPIC_PLAN = "topic.plan"
    TOPIC_READ = "topic.read"
    TOPIC_CHANGE = "topic.change"
    TOPIC_CLEAR = "topic.clear"
    TOPIC_GROUPS = "topic.groups"
    TOPIC_ACK = "topic.ack"
    TOPIC_ACK_OTHERS = "topic.ack_others"
    TOPIC_RESET = "topic.reset"
    SQL_RUN = "sql.run"
    SQL_QUERY = "sql.query"
    SQL_READ_OWN = "sql.read_own"
    SQL_WRITE = "sql.write"
    SQL_EXECUTE_AS = "sql.execute_as"
    TABLE_LIST = "table.list"
    TABLE_CREATE = "table.create"
    TABLE_CHANGE = "table.change"
    TABLE_DROP = "table.drop"
    LIVE_OPEN = "live.open"
    LINK_CREATE = "link.create"
    USER_LIST = "user.list"
    USER_SHOW = "user.show"
    USER_CREATE = "user.create"
    USER_CHANGE = "user.change"
    USER_DELETE = "user.delete"
    TOKEN_LIST = "token.list"  # noqa: S105 - a word for an operation
    TOKEN_CREATE = "token.create"  # noqa: S105
    TOKEN_REVOKE = "token.revoke"  # noqa: S105
    AUDIT_LIST = "audit.list"
    JOB_LIST = "job.list"
    JOB_SHOW = "job.show"
    TENANT_LIST = "tenant.list"
    TENANT_CREATE = "tenant.create"
    TENANT_CHANGE = "tenant.change"
    TENANT_ENABLE = "tenant.enable"
    TENANT_DISABLE = "tenant.disable"
    WORKER_REPORT = "worker.report"
    METRICS_SHOW = "metrics.show"
    BACKUP_CREATE = "backup.create"
    BACKUP_CHANGE = "backup.change"


_EVERYONE = frozenset(
    {
        Operation.ME_SHOW,
        Operation.STATUS_SHOW,
        Operation.QUOTA_SHOW,
        Operation.DOCS_SHOW,
        Operation.PIPELINE_LIST,
        Operation.PIPELINE_SHOW,
        Operation.TOPIC_LIST,
        Operation.TOPIC_SHOW,
        Operation.TOPIC_GROUPS,
        Operation.TABLE_LIST,
        Operation.SQL_RUN,
        Operation.LIVE_OPEN,
        Operation.LINK_CREATE,
    }
)
_READER = _EVERYONE | {
    Operation.TOPIC_CONSUME,
    Operation.TOPIC_ACK,
    Operation.TOPIC_PLAN,
    Operation.TOPIC_READ,
    Operation.SQL_QUERY,
    Operation.SQL_READ_OWN,
}
_WRITER = _EVERYONE | {Operation.TOPIC_PUBLISH, Operation.SQL_WRITE, Operation.SQL_READ_OWN}
_ADMIN = (
    _READER
    | _WRITER
    | {
        Operation.TOPIC_CREATE,
        Operation.TOPIC_DELETE,
        Operation.TOPIC_CHANGE,
        Operation.TOPIC_CLEAR,
        Operation.TOPIC_ACK_OTHERS,
        Operation.TOPIC_RESET,
        Operation.TABLE_CREATE,
        Operation.TABLE_CHANGE,
        Operation.TABLE_DROP,
        Operation.SQL_EXECUTE_AS,
        Operation.JOB_LIST,
        Operation.JOB_SHOW,
    }
)
_INSTANCE = frozenset(
    {
        Operation.TENANT_LIST,
        Operation.TENANT_CREATE,
        Operation.TENANT_CHANGE,
        Operation.TENANT_ENABLE,
        Operation.TENANT_DISABLE,
        Operation.WORKER_REPORT,
        Operation.METRICS_SHOW,
        Operation.BACKUP_CREATE,
        Operation.BACKUP_CHANGE,
    }
)
_ALLOWED: dict[Role, frozenset[Operation]] = {
    Role.READER: _READER,
    Role.WRITER: _WRITER,
    Role.ADMIN: _ADMIN,
    Role.PANEL: frozenset(Operation) - _INSTANCE,
}
INSTANCE_ADMINISTRATOR = f"{Role.PANEL} in the tenant '{DEFAULT_TENANT}'"


@dataclass(frozen=True, slots=True)
class Principal:
    """An authenticated caller: the user, the token, and the tenant in which they act."""

    tenant: str
    user: str
    roles: frozenset[Role]
    token_id: str
    own_tenant: str
    expires_us: int | None = None
    is_session: bool = False  # of a browser: it came as a cookie

    @property
    def full_name(self) -> str:
        """The user, with the tenant they come from where they act in another one."""
        return self.user if self.own_tenant == self.tenant else f"{self.own_tenant}/{self.user}"

    @property
    def qualified_name(self) -> str:
        """The tenant they come from and the user: what belongs to a user is stored under it."""
        return f"{self.own_tenant}/{self.user}"

    @property
    def is_instance_admin(self) -> bool:
        """Whether they administer the whole instance, not one tenant."""
        return self.own_tenant == DEFAULT_TENANT and Role.PANEL in self.roles


def allowed_operations(roles: frozenset[Role], *, instance: bool) -> frozenset[Operation]:
    """Return every operation that these roles allow."""
    mine = frozenset[Operation]().union(*(_ALLOWED[role] for role in roles))
    return mine | _INSTANCE if instance and Role.PANEL in roles else mine


def is_allowed(principal: Principal, operation: Operation) -> bool:
    """Return whether the roles allow an operation."""
    if operation in _INSTANCE:
        return principal.is_instance_admin
    return any(operation in _ALLOWED[role] for role in principal.roles)


def check_allowed(principal: Principal, operation: Operation, hint: str | None = None) -> None:
    """Raise Forbidden, with the role that is needed, where the roles do not allow an operation."""
    if is_allowed(principal, operation):
        return
    if operation in _INSTANCE:
        hint = f"This is for administrators of the instance ({INSTANCE_ADMINISTRATOR}): ask one of them."
    raise Forbidden(
        user=principal.user,
        tenant=principal.tenant,
        operation=str(operation),
        needed=needed_role(operation),
        hint=hint,
    )


def needed_role(operation: Operation) -> str:
    """Return the least role that an operation needs."""
    if operation in _INSTANCE:
        return INSTANCE_ADMINISTRATOR
    return str(next(role for role in Role if operation in _ALLOWED[role]))


def parse_role(text: str) -> Role:
    """Return the role of a name or a short form, or raise RequestInvalid."""
    if text in ROLE_SHORTS:
        return ROLE_SHORTS[text]
    try:
        return Role(text)
    except ValueError as problem:
        known = ", ".join([*ROLE_SHORTS, *Role])
        raise RequestInvalid(reason=f"'{text[:80]}' is not a role.", hint=f"Roles are {known}.") from problem
