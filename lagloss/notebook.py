"""Windows as pandas data frames, for notebooks; needs the server's packages, where the SDK needs none of them."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from pandas import DataFrame

Of = Literal["windows", "checkpoints", "nodes", "links", "destinations", "reasons"]
_INSTALL: Final = "read_windows needs lagloss-server: run `pip install 'lagloss-server[notebook]'`"


def read_windows(
    pipeline: str, from_: str = "-1h", to: str = "now", *, of: Of = "windows", database_url: str | None = None
) -> DataFrame:
    """Return the windows of a pipeline with from <= start < to, oldest first, one row each.

    Times are RFC 3339 or relative (`-2h`). The columns are the fields of `lagloss windows --json`, nested ones joined
    by an underscore: `lost_min`, `e2e_lag_ms_p95`. `of`: a row for each checkpoint, node, link, destination, or reason
    for which messages were filtered or dead, of each window, instead. `database_url`: by default that of the settings,
    or of a running `lagloss up`.

    Raises:
        ImportError: lagloss-server or pandas is not installed.
        LaglossError: an unknown pipeline, a time that is none, or a database that does not answer.
    """
    try:
        frames = import_module("lagloss_server.queries.frames")
    except ImportError as error:
        raise ImportError(_INSTALL) from error
    frame: DataFrame = frames.read_windows(pipeline, from_, to, of=of, database_url=database_url)
    return frame
