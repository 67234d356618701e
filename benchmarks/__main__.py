"""`python -m benchmarks`: all of them, or those named."""

from __future__ import annotations

import argparse
import traceback
from collections.abc import Callable, Sequence
from typing import Final

from benchmarks import (
    blame,
    closing,
    discovery,
    extraction,
    groups,
    idle,
    importing,
    intake,
    live,
    looks,
    many_taps,
    overview,
    paging,
    panels,
    pipelines,
    readers,
    reports,
    sizes,
    span,
    tables,
    taps,
    year,
)
from benchmarks.figures import Figure, table

ALL: Final[dict[str, Callable[[], Sequence[Figure] | None]]] = {
    "closing": closing.run,
    "hour": closing.run_hour,
    "sizes": sizes.run,
    "stored": sizes.run_stored,
    "pipelines": pipelines.run,
    "rollups": pipelines.run_rollups,
    "reports": reports.run,
    "live": live.run,
    "span": span.run,
    "extraction": extraction.run,
    "groups": groups.run,
    "discovery": discovery.run,
    "taps": taps.run,
    "tables": tables.run,
    "many-taps": many_taps.run,
    "intake": intake.run,
    "importing": importing.run,
    "paging": paging.run,
    "looks": looks.run,
    "overview-many": overview.run,
    "readers-many": readers.run,
    "panels": panels.run,
    "year": year.run,
    "blame": blame.run,
    "idle_memory": idle.run,
}
_EACH: Final = "all"


def main() -> None:
    """Run the benchmarks that the command line names, and print the table of their figures."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure beside a reference.")
    parser.add_argument("names", nargs="*", choices=(*ALL, _EACH), default=_EACH, metavar="NAME", help=", ".join(ALL))
    names = parser.parse_args().names
    figures: list[Figure] = []
    failed = []
    for name in ALL if _EACH in names else names:
        print(f"== {name}", flush=True)
        try:
            figures += ALL[name]() or ()
        except (Exception, SystemExit) as error:  # the others are measured all the same
            traceback.print_exception(error)
            failed.append(name)
    print(table(figures))
    missed = [figure.name for figure in figures if not figure.is_met]
    if failed or missed:
        raise SystemExit(f"failed: {', '.join(failed) or 'none'}; missed: {', '.join(missed) or 'none'}")


if __name__ == "__main__":
    main()
