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
        raise BadSetting(variable=name, problem=f"and {name}_FILE are both set: set only one of them")
    try:
        return Path(path).read_text("utf-8").strip("\r\n")
    except PermissionError as error:
        problem = f"is {path}, which user {os.geteuid()} cannot read. Grant that user read access (chown, chmod)"
        raise BadSetting(variable=f"{name}_FILE", problem=problem) from error
    except (OSError, UnicodeDecodeError) as error:
        raise BadSetting(variable=f"{name}_FILE", problem=f"is {path}, which cannot be read: {error}") from error
