"""A secret of a receiver: named by an environment variable or a file, or given as text, and never shown."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import GetCoreSchemaHandler
from pydantic_core import CoreSchema, core_schema

from lagloss.errors import UsageError

_EXPECTED: Final = "expected text, {env: NAME} or {file: PATH}"


class SecretMissing(UsageError):
    """Expected a secret in {where}, found {found}."""


class Secret:
    """A reference to a secret, or its text; usable as a field of a pydantic model.

    Its `repr` and `str` never hold a value that was given as text.
    """

    __slots__ = ("_kind", "_value")

    def __init__(self, kind: Literal["env", "file", "text"], value: str) -> None:
        self._kind = kind
        self._value = value

    @classmethod
    def parse(cls, raw: object) -> Secret:
        """Parse the secret in a configuration.

        Raises:
            ValueError: without quoting the value, which may be the secret.
        """
        if isinstance(raw, Secret):
            return raw
        if isinstance(raw, str):
            if not raw.strip():
                raise ValueError(f"{_EXPECTED}, found empty text")
            return cls("text", raw.strip())
        if isinstance(raw, dict) and len(raw) == 1:
            kind, value = next(iter(raw.items()))
            if kind in ("env", "file") and isinstance(value, str) and value and "\0" not in value:
                return cls("env" if kind == "env" else "file", value)
        raise ValueError(f"{_EXPECTED}, found another value")

    def reveal(self) -> str:
        """Return its present value, without white space around it.

        Raises:
            SecretMissing: names the variable or the file.
        """
        value = self._from_file() if self._kind == "file" else self._value
        if self._kind == "env":
            value = os.environ.get(self._value, "").strip()
            if not value:
                missing = "an empty value" if self._value in os.environ else "no such variable"
                raise SecretMissing(where=f"the environment variable {self._value}", found=missing)
        return value

    def _from_file(self) -> str:
        where = f"the file {self._value}"
        try:
            value = Path(self._value).read_text("utf-8").strip()
        except OSError as error:
            raise SecretMissing(where=where, found=error.strerror or type(error).__name__) from None
        except UnicodeDecodeError:
            raise SecretMissing(where=where, found="content that is not UTF-8") from None
        if not value:
            raise SecretMissing(where=where, found="an empty file")
        return value

    def __repr__(self) -> str:
        return "Secret(***)" if self._kind == "text" else f"Secret({self._kind}: {self._value})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and (self._kind, self._value) == (other._kind, other._value)

    def __hash__(self) -> int:
        return hash((self._kind, self._value))

    def _shown(self) -> str | dict[str, str]:
        return "***" if self._kind == "text" else {self._kind: self._value}

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        shown = core_schema.plain_serializer_function_ser_schema(cls._shown)
        return core_schema.no_info_plain_validator_function(cls.parse, serialization=shown)
