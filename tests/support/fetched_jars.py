"""The command by which a set of jars of some tests is fetched, and its lock written anew."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich.console import Console

from lagloss.errors import LaglossError
from lagloss_server.ops.jars import JarSet, ensure, jars_dir, shown_progress, write_lock


def fetch(
    arguments: Sequence[str], sets: tuple[JarSet, ...], done: str, more: Callable[[], object] = lambda: None
) -> int:
    """Fetch jars, with `--lock` after writing their locks anew, then do more; say that it is done.

    Return exit code 0, or an error's.
    """
    console = Console(stderr=True)
    try:
        if "--lock" in arguments:
            jars_dir().mkdir(parents=True, exist_ok=True)
            for jar_set in sets:
                assert jar_set.lock is not None
                write_lock(jar_set.lock, (jar_set,))
        with shown_progress(console) as report:
            ensure(report, sets)
        more()
    except LaglossError as error:
        console.print(str(error), style="red", markup=False, highlight=False)
        return error.exit_code
    console.print(done)
    return 0
