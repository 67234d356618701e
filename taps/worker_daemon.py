"""Spark's Python daemon with the extraction already imported and compiled, so that a worker forked from it starts at
once."""

from __future__ import annotations

import gc

import numpy as np
from pyspark.daemon import manager

from lagloss_server.extraction import Extraction, Extractor, Records
from lagloss_server.model.expressions import ConditionExpression, IdExpression, TimeExpression
from taps import spark_task  # noqa: F401  # imported for the workers
from taps.order import KeyTimes, are_out_of_order


def warm_up() -> None:
    """Compile the loops, or load what an earlier process compiled: 4 s the first time, then a fraction of one."""
    where = ConditionExpression.parse('$.id == "a" or $.id == 1')
    spec = Extraction(IdExpression.parse("$.id"), TimeExpression.parse("timestamp"), where)
    Extractor(spec).extract(Records(np.zeros(1, np.int64), [None], [b'{"id": "a"}'], [None]))
    are_out_of_order(KeyTimes.none())


if __name__ == "__main__":
    warm_up()
    gc.freeze()  # what is imported never becomes garbage: workers need not look through it again and again
    manager()
