"""The errors of Tidegate: every class that it raises on purpose, and its HTTP status.

TidegateError
├── RequestRefused                  the caller must change something; asking again changes nothing
│   ├── RequestMalformed            400  the bytes are not what the content type says
│   ├── TokenMissing                401  no bearer token
│   ├── TokenWrong                  401  a bearer token that is unknown here
│   │   ├── TokenExpired            401  valid once, and expired
│   │   ├── TokenRevoked            401  valid once, and revoked
│   │   └── LinkWrong               401  a one-time link that was used, is too old or was never made
│   ├── Forbidden                   403  the role does not allow it
│   ├── OwnedByAnother              403  a producer or sink writer of another user
│   ├── UserDisabled                403
│   ├── TenantDisabled              403
│   ├── OriginRefused               403  a page of another site uses the browser's cookie
│   ├── SessionInsufficient         403  a browser's session asks for a token or a link
│   ├── EndpointNotFound            404  no such path
│   ├── MethodNotAllowed            405  the path exists, the method does not
│   ├── BodyTooLarge                413  more bytes than the setting allows
│   ├── ContentTypeUnsupported      415  a body in a format the endpoint does not take
│   ├── RequestInvalid              422  well formed, but a value is wrong
│   │   ├── NameInvalid             422  a name that breaks the naming rule
│   │   ├── DurationInvalid         422  text that is not a duration
│   │   ├── TimeRangeInvalid        422  an end before its start, or text that is not a time
│   │   ├── SchemaInvalid           422  a column or a type that cannot be
│   │   ├── SettingInvalid          422  a setting that is unknown, of a wrong type or out of bounds
│   │   ├── SqlInvalid              422  the statement does not parse, bind or run
│   │   ├── SqlUnsupported          422  a statement this version does not run
│   │   ├── QueryMemory             422  a statement that needs more memory than the setting allows
│   │   ├── ValueInvalid            422  a value that its column does not take
│   │   ├── StateInvalid            422  an operator or a state that cannot be
│   │   └── StateOutsideKey         422  keyed state, used while there is no key
│   ├── NotFound                    404
│   │   ├── TopicNotFound           404
│   │   ├── PartitionNotFound       404
│   │   ├── GroupNotFound           404
│   │   ├── RouteNotFound           404
│   │   ├── TableNotFound           404
│   │   ├── NamespaceNotFound       404
│   │   ├── ColumnNotFound          404
│   │   ├── IndexNotFound           404
│   │   ├── PipelineNotFound        404
│   │   ├── TenantNotFound          404
│   │   ├── UserNotFound            404
│   │   ├── TokenNotFound           404
│   │   ├── JobNotFound             404
│   │   ├── BackupNotFound          404
│   │   └── StateNotFound           404
│   ├── Conflict                    409
│   │   ├── TopicExists             409  the name is taken
│   │   ├── RouteExists             409  a source that the topic has already
│   │   ├── RouteCycle              409  a topic as the source of a topic
│   │   ├── TopicReplaced           409  the topic was deleted and created again since
│   │   ├── SequenceGap             409  a producer skipped messages
│   │   ├── SequenceTooOld          409  a producer repeats what is no longer remembered
│   │   ├── SequenceReused          409  a producer sends something else under numbers that it used
│   │   ├── TableExists             409
│   │   ├── NamespaceExists         409
│   │   ├── NamespaceNotEmpty       409
│   │   ├── ColumnExists            409
│   │   ├── IndexExists             409
│   │   ├── RowExists               409  an INSERT of a key that is there
│   │   ├── TableChanged            409  dropped or altered while a statement ran
│   │   ├── WriteConflict           409  others changed the same rows, again and again
│   │   ├── TenantExists            409
│   │   ├── UserExists              409
│   │   ├── UserHasRows             409  a new user's name has rows from before
│   │   ├── RowsBeingRemoved        409  rows of a user, while they are removed
│   │   ├── LastAdministrator       409  the first administrator cannot be removed
│   │   ├── LeaseHeld               409  someone else has it
│   │   ├── LeaseLost               409  someone else has it now: the write did not happen
│   │   ├── JobStateWrong           409
│   │   ├── IdempotencyKeyReused    409  a key of an earlier, other request
│   │   ├── IdempotencyAnswerHidden 409  done before; the answer held a secret
│   │   ├── StateMismatch           409  a checkpoint that the operator does not fit
│   │   ├── PlanChanged             409  a batch that was done before under another plan
│   │   └── SavepointExists         409
│   ├── OffsetOutOfRange            416  an offset that retention removed, or that is not there yet
│   ├── RequestTimeout              408  the body did not arrive in time
│   ├── HeadersTooLarge             431  more bytes of headers than the setting allows
│   ├── TooManyRequests             429  more at once than the settings allow
│   ├── TooManyGuesses              429  wrong tokens, one after the other
│   ├── RateQuotaReached            429  a tenant or a user did more in a second than it may
│   └── QuotaReached                507  a tenant has as much as it may have
├── Unavailable                     a disk, a network or another process fails; the same call may work later
│   ├── NotReady                    503  starting or stopping
│   ├── ServerNotRunning            503  no server at that address
│   ├── CatalogUnavailable          503  the catalog's database does not answer
│   ├── SparkGone                   503  the Java process of the worker ended by itself
│   ├── QueryTimeout                504  a statement ran longer than the setting allows
│   ├── QueryCrashed                500  the process that ran a statement ended by itself
│   ├── StorageFull                 507  no room on the disk; nothing was written
│   ├── StorageFailed               500  the disk refused a read or a write
│   ├── BatchTaken                  503  another attempt of a task committed the batch first
│   └── CheckpointUnusable          503  a checkpoint that cannot be read or written
├── StorageCorrupt                  500  bytes at rest do not match their checksum
│   └── StateCorrupt                500  the same, inside an operator's state
├── RowFailed                       500  an operator raised on a row
├── StartRefused                    a process cannot start here
│   ├── PortInUse                   500
│   ├── HomeLocked                  500
│   ├── HomeTooNew                  500
│   ├── HomeUnusable                500
│   ├── JavaMissing                 500
│   ├── JarsMissing                 500
│   ├── PipelineInvalid             500  a pipeline file that cannot be loaded
│   ├── CatalogTooNew               500
│   ├── CatalogUnusable             500
│   ├── BackupUnusable              500  damaged, cut short or no backup
│   ├── BackupKeyUnusable           500  a key file that others may read, or that is none
│   └── TlsUnusable                 500
├── ServerUntrusted                 500  a client does not trust the server's certificate
└── InvariantBroken                 500  a bug of Tidegate, never the caller's fault

A class has a stable `code`, the HTTP `status`, a message template and a default hint. An instance has the
values that fill the template. `to_wire` and `from_wire` encode and decode an error for HTTP, so that a client
raises the class that the server raised.
"""

from __future__ import annotations

# Every public class of these modules: a name that is imported by a star counts as exported again.
# ruff: noqa: F403
from tidegate.errors.accounts import *
from tidegate.errors.refused import *
from tidegate.errors.root import *
from tidegate.errors.start import *
from tidegate.errors.state import *
from tidegate.errors.unavailable import *
