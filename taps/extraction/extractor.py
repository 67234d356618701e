"""Stand-in until the real one is merged."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from lagloss_server.model.taps import Extraction
from taps.extraction.records import Records


@dataclass(frozen=True, slots=True)
class Extracted:
    rows: npt.NDArray[np.intp]
    ids: list[bytes]
    event_ms: npt.NDArray[np.float64]
    left_out: int
    unreadable: Mapping[str, npt.NDArray[np.intp]]


class Extractor:
    def __init__(self, extraction: Extraction, registry: object) -> None:
        self.e = extraction

    def extract(self, records: Records) -> Extracted:
        rows, ids, times, left_out = [], [], [], 0
        bad: dict[str, list[int]] = {}
        for row, value in enumerate(records.values):
            headers = {name: (found or b"").decode() for name, found in records.headers[row] or ()}
            if self.e.where is not None and not _passes(self.e.where, headers):
                left_out += 1
                continue
            try:
                document = json.loads(value or b"") if "$" in self.e.id + self.e.event_time else {}
            except ValueError:
                bad.setdefault("not_json", []).append(row)
                continue
            try:
                message_id = _part(self.e.id, document, headers)
                time_ms = float(_part(self.e.event_time.removesuffix(" in ms"), document, headers))
            except (KeyError, ValueError, TypeError):
                bad.setdefault("no_id", []).append(row)
                continue
            rows.append(row)
            ids.append(message_id.encode())
            times.append(time_ms)
        return Extracted(
            np.array(rows, np.intp),
            ids,
            np.array(times, float),
            left_out,
            {key: np.array(found, np.intp) for key, found in bad.items()},
        )


def _part(expression: str, document: Any, headers: Mapping[str, str]) -> str:
    return headers[expression[7:]] if expression.startswith("header:") else str(document[expression[2:]])


def _passes(where: str, headers: Mapping[str, str]) -> bool:
    if (exists := re.fullmatch(r"(not )?exists header:(\S+)", where)) is not None:
        return (exists[2] in headers) != bool(exists[1])
    equals = re.fullmatch(r'header:(\S+) == "(.*)"', where)
    assert equals is not None, where
    return headers.get(equals[1]) == equals[2]
