"""An aggregator that loses its lease after seconds without a sign of life: `python -m tests.support.short_lease`.

With MARKER and PERMIT, it stands in the middle of its first commit of windows from when it has written the first of
these files until the other one exists.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from aggregator import __main__, service
from aggregator.closing import window_store as closings
from tests.support.dying.processes import around

LEASE_S = 3.0
TRANSACTION_IDLE_S = 5


def main() -> int:
    """Run the aggregator."""
    service.LEASE_S = LEASE_S
    service.TRANSACTION_IDLE_S = TRANSACTION_IDLE_S
    if len(sys.argv) > 1:
        marker, permit = map(Path, sys.argv[1:])

        def stand(_: object) -> None:
            marker.touch()
            while not permit.exists():
                time.sleep(0.05)

        around(closings, "commit", after=stand)
    return __main__.main()


if __name__ == "__main__":
    sys.exit(main())
