"""Compilation of loops over arrays: numba, kept on disk between processes.

Python's own loops cost 50 ns a step and numpy a pass over memory for each; these go over an item once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

U8 = npt.NDArray[np.uint8]
Int = Any
"""A machine integer: in Python of any kind, compiled an int64."""
Loop = TypeVar("Loop", bound=Callable[..., object])


def compiled(loop: Loop) -> Loop:
    """Compile a function on numpy arrays and numbers at its first call, or load its cached compilation."""
    return _compiled(loop)


def compiled_bare(loop: Loop) -> Loop:
    """Compile likewise a function that makes no array and returns none, and that is called for each byte or field.

    It does not count references to its arguments: atomic operations that cost 10 ns an array and call, which numba
    cannot remove from functions with loops and several returns.
    """
    return _compiled(loop, _nrt=False)


def _compiled(loop: Loop, **options: Any) -> Loop:
    try:
        return cast("Loop", numba.njit(cache=True, nogil=True, **options)(loop))
    except RuntimeError:  # neither beside the module nor in the user's cache can anything be written
        return cast("Loop", numba.njit(nogil=True, **options)(loop))
