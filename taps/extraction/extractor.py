"""Stand-in until the real one is merged."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

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
        rows, ids, times, bad = [], [], [], {}
        for row, value in enumerate(records.values):
            try:
                doc = json.loads(value)
            except Exception:
                bad.setdefault("not_json", []).append(row)
                continue
            try:
                if self.e.id.startswith("header:"):
                    i = dict(records.headers[row])[self.e.id[7:]].decode()
                else:
                    i = str(doc[self.e.id[2:]])
                t = float(doc[self.e.event_time[2:]])
            except Exception:
                bad.setdefault("no_id", []).append(row)
                continue
            rows.append(row)
            ids.append(i.encode())
            times.append(t)
        return Extracted(
            np.array(rows, np.intp), ids, np.array(times, float), 0, {k: np.array(v, np.intp) for k, v in bad.items()}
        )
