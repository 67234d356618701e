"""Compilation of the kernel's loops: numba, kept on disk between processes.

Python's own loops cost 50 ns a step and numpy a pass over memory for each; these go over a beacon once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numba

Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(loop: Loop) -> Loop:
    """Compile a function on numpy arrays and numbers at its first call, or load its cached compilation."""
    try:
        return cast("Loop", numba.njit(cache=True, nogil=True)(loop))
    except RuntimeError:  # neither beside the module nor in the user's cache can anything be written
        return cast("Loop", numba.njit(nogil=True)(loop))
