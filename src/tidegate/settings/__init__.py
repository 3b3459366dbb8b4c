"""Settings: takes tidegate.toml, environment and flags; gives one frozen object with each value's origin.

Later wins: default, then `tidegate.toml` in the home folder, then `TIDEGATE_<SECTION>_<NAME>`, then a flag.
An unknown key, a wrong type or a value out of bounds stops the start with an error that names the place
and, for an unknown key, the nearest one that exists.
"""

from __future__ import annotations

# Every public name of these modules: one that is imported by a star counts as exported again.
# ruff: noqa: F403
from tidegate.settings.loading import *
from tidegate.settings.sections import *
