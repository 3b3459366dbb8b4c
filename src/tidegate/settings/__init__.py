"""Settings: takes tidegate.toml, environment and flags; gives one frozen object with each value's origin.

Later wins: default, then `tidegate.toml` in the home folder, then `TIDEGATE_<SECTION>_<NAME>`, then a flag.
An unknown key, a wrong type or a value out of bounds stops the start with an error that names the place
and, for an unknown key, the nearest one that exists.
"""

from __future__ import annotations

from tidegate.settings.loading import (
    ENVIRONMENT_OTHERS,
    ENVIRONMENT_PREFIX,
    SETTINGS_FILE,
    SettingNote,
    Settings,
    describe_settings,
    load_settings,
)
from tidegate.settings.sections import (
    AuthSettings,
    CatalogSettings,
    LiveSettings,
    LogSettings,
    QuerySettings,
    ServerSettings,
    StorageSettings,
    StreamSettings,
    SupervisorSettings,
    TopicSettings,
    TracingSettings,
    WorkerSettings,
)

__all__ = [
    "ENVIRONMENT_OTHERS",
    "ENVIRONMENT_PREFIX",
    "SETTINGS_FILE",
    "AuthSettings",
    "CatalogSettings",
    "LiveSettings",
    "LogSettings",
    "QuerySettings",
    "ServerSettings",
    "SettingNote",
    "Settings",
    "StorageSettings",
    "StreamSettings",
    "SupervisorSettings",
    "TopicSettings",
    "TracingSettings",
    "WorkerSettings",
    "describe_settings",
    "load_settings",
]
