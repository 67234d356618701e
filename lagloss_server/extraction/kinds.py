"""What a part of a record can be, once read: a kind, and by it a number or a span of bytes."""

from __future__ import annotations

from typing import Final

ABSENT: Final = 0
NULL: Final = 1
BOOL: Final = 2
"""The number is 0 or 1."""
INT: Final = 3
"""The number is its value."""
MILLIS: Final = 4
"""An INT that counts ms since the epoch, by its schema."""
MICROS: Final = 5
NANOS: Final = 6
LARGE_INT: Final = 7
"""An integer beyond 64 bits: a span of its decimal digits."""
FLOAT: Final = 8
"""The number holds the bits of a float64."""
TEXT: Final = 9
"""A span of valid UTF-8."""
BYTES: Final = 10
"""A span of any bytes."""
UUID: Final = 11
"""A span of 16 bytes."""
DATE: Final = 12
"""An INT that counts days, by its schema."""
MOMENT: Final = 13
"""A timestamp without a number of its own: the number counts ns since the epoch."""
OTHER: Final = 14
"""An object, an array, or what has no form as id or time."""
NO_VALUE: Final = 15
"""The value of a tombstone: null, though nothing is there."""
