"""Errors, one class each; those of the services are in `lagloss_server.base.errors`.

A class's docstring *is* its message: what was expected, what was found, what to do next. Facts go in by keyword::

    raise KafkaUnreachable(bootstrap="127.0.0.1:9092", detail="…")

LaglossError
├── UsageError                exit 2
│   └── BadSetting
└── ServerUnreachable         exit 3
    └── KafkaUnreachable
        └── KafkaRefuses
"""

from __future__ import annotations

import inspect
from typing import ClassVar, Final

EXIT_OK: Final = 0
EXIT_BREACHED: Final = 1
EXIT_USAGE: Final = 2
EXIT_WOULD_CHANGE: Final = 2
"""Of `lagloss apply --check`, by the convention of `terraform plan`; a usage error has a message on stderr, too."""
EXIT_UNREACHABLE: Final = 3
EXIT_NOT_ENOUGH_DATA: Final = 4


class LaglossError(Exception):
    """Internal error: {detail}"""

    exit_code: ClassVar[int] = EXIT_UNREACHABLE

    def __init__(self, **facts: object) -> None:
        self.facts = facts
        pattern = " ".join(inspect.cleandoc(self.__doc__ or "{}").split())
        super().__init__(pattern.format_map(facts))

    def __reduce__(self) -> tuple[object, ...]:  # pickle would pass the message, but facts are keyword-only
        return _rebuilt, (type(self), self.facts)


def _rebuilt(kind: type[LaglossError], facts: dict[str, object]) -> LaglossError:
    return kind(**facts)


class UsageError(LaglossError):
    """{detail}"""

    exit_code = EXIT_USAGE


class ServerUnreachable(LaglossError):
    """{detail}"""


class KafkaUnreachable(ServerUnreachable):
    """Cannot reach Kafka at {bootstrap}: {detail}. Check that `lagloss up` is running, or LAGLOSS_KAFKA_BOOTSTRAP."""


class KafkaRefuses(KafkaUnreachable):
    """Kafka at {bootstrap} rejects {who}: {detail}. See docs/kafka.md for the connection variables and the ACLs."""


class BadSetting(UsageError):
    """{variable} {problem}."""
