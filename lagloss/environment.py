"""The environment: secrets in a variable, or in a file that a variable names."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from lagloss.errors import BadSetting


def secret(environ: Mapping[str, str], name: str) -> str:
    """Return the secret in the variable `name`, or in the file that `name_FILE` names; "" without either.

    Raises:
        BadSetting: the file cannot be read, or both are set.
    """
    value, path = environ.get(name, ""), environ.get(f"{name}_FILE", "")
    if not path:
        return value
    if value:
        raise BadSetting(variable=name, problem=f"is set, and {name}_FILE, too: expected one of them")
    try:
        return Path(path).read_text("utf-8").strip("\r\n")
    except PermissionError as error:
        problem = (
            f"names {path}, which user {os.geteuid()} is not allowed to read. Let that user read it (chown, chmod)"
        )
        raise BadSetting(variable=f"{name}_FILE", problem=problem) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(variable=f"{name}_FILE", problem=f"names {path}, which cannot be read: {error}") from error
