"""Errors of a start, of TLS trust, and of broken invariants."""

from __future__ import annotations

from tidegate.errors.root import TidegateError


class StartRefused(TidegateError):
    code = "START_REFUSED"


class PortInUse(StartRefused):
    code = "PORT_IN_USE"
    template = "Port {port} on {host} is taken."
    default_hint = "Stop what uses it, or choose another: --port {other}."


class HomeLocked(StartRefused):
    code = "HOME_LOCKED"
    template = "A {kind} runs already in {home} (process {pid})."
    default_hint = "Stop it first (kill {pid}), or give this one another home: --home DIR."


class HomeTooNew(StartRefused):
    code = "HOME_TOO_NEW"
    template = "{home} has layout {found}; this version knows layouts up to {known}."
    default_hint = "Install a newer Tidegate, or use another home: --home DIR."


class HomeUnusable(StartRefused):
    code = "HOME_UNUSABLE"
    template = "{home} cannot be used as a home folder: {reason}."
    default_hint = "Name an empty folder, or one that Tidegate made: --home DIR."


class JavaMissing(StartRefused):
    code = "JAVA_MISSING"
    template = "No Java 17 or newer was found: {reason}."
    default_hint = "apt-get install openjdk-17-jre-headless, or set JAVA_HOME."


class JarsMissing(StartRefused):
    code = "JARS_MISSING"
    template = "Spark's Delta jars could not be fetched: {reason}"
    default_hint = "Run 'make setup' once with a connection to a Maven repository."


class PipelineInvalid(StartRefused):
    code = "PIPELINE_INVALID"
    template = "{file} is not a pipeline: {reason}"
    default_hint = "A pipeline file has one function under @tide.pipeline; see docs/guide/pipelines.md."


class CatalogTooNew(StartRefused):
    code = "CATALOG_TOO_NEW"
    template = "The catalog at {catalog} has revision {found}, which this version does not know."
    default_hint = "Install a newer Tidegate, or restore the backup that was made before the upgrade."


class CatalogUnusable(StartRefused):
    code = "CATALOG_UNUSABLE"
    template = "The catalog at {catalog} cannot be used: {reason}."
    default_hint = "Check catalog.url, and that the database is there and may be written."


class BackupUnusable(StartRefused):
    code = "BACKUP_UNUSABLE"
    template = "{file} cannot be used as a backup: {reason}."
    default_hint = "Nothing was changed. Take another file, or make one with 'tidegate backup FILE'."


class BackupKeyUnusable(StartRefused):
    code = "BACKUP_KEY_UNUSABLE"
    template = "{file} cannot be used as a key of backups: {reason}."
    default_hint = "Make a key with 'tidegate backup --make-key KEYFILE', and keep a copy elsewhere."


class TlsUnusable(StartRefused):
    code = "TLS_UNUSABLE"
    template = "TLS cannot start: {reason}."
    default_hint = "server.tls_certificate_file and server.tls_key_file name PEM files that belong together."


class ServerUntrusted(TidegateError):
    code = "SERVER_UNTRUSTED"
    template = "The certificate of {url} is not trusted: {reason}."
    default_hint = "Name the certificate that signed it: TIDEGATE_CA_FILE, or connect(…, ca_file=…)."


class InvariantBroken(TidegateError):
    code = "INVARIANT_BROKEN"
    template = "A promise inside Tidegate does not hold: {reason}"
    default_hint = "This is a bug in Tidegate. Please report it with the log of the process."
