"""Spark's Python daemon with the kernel already imported, so that a worker forked from it starts counting at once.

Idle workers end after a minute, which is just when the next window is due; importing anew cost each of them a second.
"""

from __future__ import annotations

from pyspark.daemon import manager

import aggregator.kernel  # noqa: F401 - for its import

if __name__ == "__main__":
    manager()
