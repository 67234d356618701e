"""`python -m benchmarks`: all of them, or those named."""

from __future__ import annotations

import sys

from benchmarks import closing, intake, live, overview, paging, panels, pipelines, sizes, span

ALL = {
    "closing": closing.run,
    "sizes": sizes.run,
    "pipelines": pipelines.run,
    "live": live.run,
    "span": span.run,
    "intake": intake.run,
    "paging": paging.run,
    "overview": overview.run,
    "panels": panels.run,
}


def main() -> None:
    for name in sys.argv[1:] or ALL:
        print(f"== {name}", flush=True)
        ALL[name]()


if __name__ == "__main__":
    main()
