"""An aggregator whose machine's clock is set: `python -m tests.support.stepping_clock FILE`; the file holds by how many
seconds. The monotonic clock goes on, as it does on a machine."""

from __future__ import annotations

import sys
import time
from pathlib import Path

LOOK_S = 0.05


class SteppingClock:
    """Time of a clock that is ahead by what a file says."""

    def __init__(self, file: Path) -> None:
        self._file, self._looked_at, self._ahead_s = file, float("-inf"), 0.0
        self._true_ns = time.time_ns

    def time(self) -> float:
        return self.time_ns() / 1e9

    def time_ns(self) -> int:
        if time.monotonic() - self._looked_at > LOOK_S:
            self._ahead_s, self._looked_at = float(self._file.read_text()), time.monotonic()
        return self._true_ns() + int(self._ahead_s * 1e9)


def main() -> int:
    """Run the aggregator; its modules are imported only when the clock is in place."""
    clock = SteppingClock(Path(sys.argv[1]))
    time.time, time.time_ns = clock.time, clock.time_ns
    from aggregator import __main__

    return __main__.main()


if __name__ == "__main__":
    sys.exit(main())
