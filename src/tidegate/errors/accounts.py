"""Errors of access: tokens, roles, tenants, users, leases, jobs, rate limits and quotas."""

from __future__ import annotations

from tidegate.errors.refused import Conflict, NotFound, RequestRefused, TokenWrong


class TokenExpired(TokenWrong):
    code = "TOKEN_EXPIRED"
    template = "This token ended at {expired_at}."
    default_hint = "An administrator makes another: 'tidegate user token {user}'."


class TokenRevoked(TokenWrong):
    code = "TOKEN_REVOKED"
    template = "This token was revoked."
    default_hint = "An administrator makes another: 'tidegate user token {user}'."


class LinkWrong(TokenWrong):
    code = "LINK_WRONG"
    template = "This link does not open anything: it was used, it is too old, or it was never made."
    default_hint = "A link works once. Make another with 'tidegate open'."


class Forbidden(RequestRefused):
    code = "FORBIDDEN"
    status = 403
    template = "User '{user}' may not do this ({operation}): it needs the role {needed}."
    default_hint = (
        "An administrator of tenant '{tenant}' can give it: 'tidegate user role {user} --role …', "
        "with every role that the user is to have."
    )


class OwnedByAnother(RequestRefused):
    code = "OWNED_BY_ANOTHER"
    status = 403
    template = "The {noun} '{name}' of topic '{topic}' belongs to another user."
    default_hint = (
        "It belongs to the user who used it first: use a token of that user, or another name. "
        "Nothing was stored."
    )


class UserDisabled(RequestRefused):
    code = "USER_DISABLED"
    status = 403
    template = "User '{user}' is disabled."
    default_hint = "An administrator of the tenant can enable it again: 'tidegate user enable {user}'."


class TenantDisabled(RequestRefused):
    code = "TENANT_DISABLED"
    status = 403
    template = "Tenant '{tenant}' is disabled."
    default_hint = "An administrator of the instance can enable it again: 'tidegate tenant enable {tenant}'."


class OriginRefused(RequestRefused):
    code = "ORIGIN_REFUSED"
    status = 403
    template = "A page of {origin} may not act for someone who is signed in here."
    default_hint = (
        "Open this server under the address that it listens on, or set server.public_url to the one that "
        "people use. A program sends a bearer token instead of the browser's cookie."
    )


class SessionInsufficient(RequestRefused):
    code = "SESSION_INSUFFICIENT"
    status = 403
    template = "A browser's session does not make tokens or links ({operation}): it would never have to end."
    default_hint = (
        "Send a bearer token, or use the command line: 'tidegate user token NAME', 'tidegate open'."
    )


class TenantNotFound(NotFound):
    code = "TENANT_NOT_FOUND"
    template = "There is no tenant '{tenant}'."
    default_hint = "'tidegate tenant list' lists them (administrators of the instance)."


class UserNotFound(NotFound):
    code = "USER_NOT_FOUND"
    template = "There is no user '{user}'."
    default_hint = "'tidegate user list' lists them; 'tidegate user add {user}' adds one."


class TokenNotFound(NotFound):
    code = "TOKEN_NOT_FOUND"
    template = "User '{user}' has no token '{token_id}'."
    default_hint = "'tidegate user tokens {user}' lists them."


class JobNotFound(NotFound):
    code = "JOB_NOT_FOUND"
    template = "There is no job '{job}'."
    default_hint = "'tidegate job list' shows the recent ones."


class BackupNotFound(NotFound):
    code = "BACKUP_NOT_FOUND"
    template = "No backup '{backup}' is being made."
    default_hint = "It was finished or cancelled; a backup is made with 'tidegate backup FILE'."


class TenantExists(Conflict):
    code = "TENANT_EXISTS"
    template = "Tenant '{tenant}' already exists."
    default_hint = "Use it as it is, or choose another name."


class UserExists(Conflict):
    code = "USER_EXISTS"
    template = "User '{user}' already exists."
    default_hint = "'tidegate user role {user} --role …' replaces all its roles; or choose another name."


class UserHasRows(Conflict):
    code = "USER_HAS_ROWS"
    template = "The name '{user}' has rows from before, in {tables}: who gets the name gets them, too."
    default_hint = (
        "'tidegate user remove {user} --with-rows' removes them; 'tidegate user add {user} --take-rows' adds "
        "the user with them."
    )


class RowsBeingRemoved(Conflict):
    code = "ROWS_BEING_REMOVED"
    template = "The rows of '{user}' are being removed."
    default_hint = "Try again when that is done. Nothing was written."
    retryable = True


class LastAdministrator(Conflict):
    code = "LAST_ADMINISTRATOR"
    template = "'{user}' is the administrator that the instance starts with."
    default_hint = "It stays; give the role AdminPanelManagement to others, too."


class LeaseHeld(Conflict):
    code = "LEASE_HELD"
    template = "'{holder}' holds the lease '{lease}'."
    default_hint = "It ends by itself when its holder is gone; try again then."
    retryable = True


class LeaseLost(Conflict):
    code = "LEASE_LOST"
    template = "No longer held: {leases}."
    default_hint = "Someone else has it now. Take it again before you continue; nothing was written."


class JobStateWrong(Conflict):
    code = "JOB_STATE_WRONG"
    template = "Job '{job}' is {state}: it cannot be {wanted}."
    default_hint = "'tidegate job show {job}' shows what happened to it."


class IdempotencyKeyReused(Conflict):
    code = "IDEMPOTENCY_KEY_REUSED"
    template = "The idempotency key '{key}' came with another request before."
    default_hint = "A key belongs to one request: take a new one for a new request."


class IdempotencyAnswerHidden(Conflict):
    code = "IDEMPOTENCY_ANSWER_HIDDEN"
    template = "The request with key '{key}' was done; its answer held a secret and is not kept."
    default_hint = "Look at what it made; where its secret is lost, make another under a new key."


class RequestTimeout(RequestRefused):
    code = "REQUEST_TIMEOUT"
    status = 408
    template = "The body did not arrive within {limit_seconds} s."
    default_hint = "Send it faster or in smaller requests, or raise server.body_seconds_max."
    retryable = True


class HeadersTooLarge(RequestRefused):
    code = "HEADERS_TOO_LARGE"
    status = 431
    template = "The request line and the headers are larger than {limit_bytes} bytes together."
    default_hint = "Send fewer or shorter headers, or raise server.header_bytes_max."


class TooManyRequests(RequestRefused):
    code = "TOO_MANY_REQUESTS"
    status = 429
    template = "Too much at once: {what} ({limit})."
    default_hint = "Try again in {retry_after_seconds} s, or raise {setting}."
    retryable = True


class TooManyGuesses(RequestRefused):
    code = "TOO_MANY_GUESSES"
    status = 429
    template = "Too many wrong tokens came from {address}."
    default_hint = "Try again in {retry_after_seconds} s, with a token that is valid here."
    retryable = True


class RateQuotaReached(RequestRefused):
    code = "RATE_QUOTA_REACHED"
    status = 429
    template = "{account} has used its quota of {quota}: {used} of {limit}."
    default_hint = (
        "Try again in {retry_after_seconds} s, or ask an administrator for a larger quota. Nothing was done."
    )
    retryable = True


class QuotaReached(RequestRefused):
    code = "QUOTA_REACHED"
    status = 507
    template = "Tenant '{tenant}' has used its quota of {quota}: {used} of {limit}."
    default_hint = (
        "Remove what is not needed, or ask an administrator of the instance for a larger quota "
        "('tidegate tenant quota {tenant}'). Nothing was done."
    )
