"""Spark's Python daemon with the extraction already imported and compiled, so that a worker forked from it starts at
once."""

from __future__ import annotations

import gc

from pyspark.daemon import manager

from taps import spark_task  # noqa: F401  # imported for the workers
from taps.extraction.warm_up import warm_up
from taps.order import KeyTimes, are_out_of_order

if __name__ == "__main__":
    warm_up()
    are_out_of_order(KeyTimes.none())
    gc.freeze()  # what is imported never becomes garbage: workers need not look through it again and again
    manager()
