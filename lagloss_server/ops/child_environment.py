"""The environment of a child process: what it needs, and no module or configuration from the current directory."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

PACKAGES: Final = Path(__file__).parents[2]
"""The folder that holds lagloss's packages: a checkout, or the site-packages of an environment."""
NOTHING: Final[Mapping[str, str]] = MappingProxyType({})

_FOREIGN: Final = re.compile(
    # paths, user, language; Java's own settings, its trust store among them; how downloads leave this network
    "PATH|LD_LIBRARY_PATH|TMPDIR|HOME|USER|LOGNAME|XDG_(CACHE|CONFIG)_HOME|TZ|LANG|LANGUAGE|LC_[A-Z]+"
    "|JAVA_HOME|JAVA_TOOL_OPTIONS|JDK_JAVA_OPTIONS"
    "|(HTTPS?|ALL|NO)_PROXY|(https?|all|no)_proxy|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|PIP_[A-Z_]+"
)


def own_modules_first() -> dict[str, str]:
    """Return the variables by which a Python finds lagloss's modules before any of the same name elsewhere.

    PYTHONSAFEPATH is `-P`: the current directory is not searched. PYTHONPATH keeps its absolute folders, after
    PACKAGES: a relative one is some folder of the current directory. Both reach the processes that the Python starts,
    such as Spark's workers.
    """
    paths = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    others = [path for path in paths if Path(path).is_absolute() and path != str(PACKAGES)]
    return {
        "PYTHONSAFEPATH": "1",
        "PYTHONPATH": os.pathsep.join([str(PACKAGES), *others]),
        # A .numba_config.yaml of the current directory could name a folder of compiled code; variables go before it.
        "NUMBA_CACHE_DIR": os.environ.get("NUMBA_CACHE_DIR", ""),
        "NUMBA_CACHE_LOCATOR_CLASSES": os.environ.get("NUMBA_CACHE_LOCATOR_CLASSES", ""),
    }


def own_environment(overrides: Mapping[str, str] = NOTHING) -> dict[str, str]:
    """Return the environment of a process of lagloss: this one's, changed by `overrides`.

    A value that is given counts, and not the file of it that `NAME_FILE` names: with both, a setting is refused. An
    empty one takes the secret from the child in either form.
    """
    environment = {**os.environ, **own_modules_first(), **overrides}
    for name in overrides:
        if f"{name}_FILE" not in overrides:
            environment.pop(f"{name}_FILE", None)
    return environment


def foreign_environment(overrides: Mapping[str, str] = NOTHING) -> dict[str, str]:
    """Return the environment of a program that is not lagloss's: no setting or secret of lagloss or of the services
    beside it, and nothing that PostgreSQL, Kafka or Python would take for a setting of theirs."""
    return {**{name: value for name, value in os.environ.items() if _FOREIGN.fullmatch(name)}, **overrides}
