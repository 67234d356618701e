"""A stand-in for a process of a node: `python -m tests.fakes.beating DIRECTORY` shows its beat there and does nothing.

The variable STUB makes it `broken` (it dies at once), `mute` (it shows no beat), `deaf` (SIGTERM does not end it) or
`dazed` (it beats once and never again).
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

from pipeline_under_test.harness.beat import Beat


def main() -> None:
    how, directory = os.environ.get("STUB", ""), Path(sys.argv[1])
    if how == "broken":
        sys.exit("broken")
    signal.signal(signal.SIGTERM, signal.SIG_IGN if how == "deaf" else lambda *_: sys.exit(0))
    if how == "dazed":
        Beat(directory).step()
    while True:
        if how not in ("mute", "dazed"):
            Beat(directory).step()  # a new one each time, so that it does not wait for a second
        time.sleep(0.05)


if __name__ == "__main__":
    main()
