"""Ratings: how much traffic one process of a node sustains within its lag target, as `pipeline rate` found it."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pydantic import AwareDatetime, BaseModel, ConfigDict, RootModel

FILE: Final = "ratings.json"


class Rating(BaseModel):
    """Found `at`: one process took `events_per_s` with 95 % of them done within `lag_target_s`."""

    model_config = ConfigDict(frozen=True)

    events_per_s: float
    lag_target_s: float
    at: AwareDatetime


class Ratings(RootModel[dict[str, Rating]]):
    """The ratings of a pipeline's nodes, by node."""

    @classmethod
    def load(cls, data_dir: Path) -> Ratings:
        """Return the ratings in this directory; none if nothing was rated yet."""
        path = data_dir / FILE
        return cls.model_validate_json(path.read_text()) if path.exists() else cls({})

    def save(self, data_dir: Path) -> None:
        """Write the file that `load` reads."""
        data_dir.mkdir(parents=True, exist_ok=True)
        fresh = data_dir / f"{FILE}.new"
        fresh.write_text(self.model_dump_json(indent=1))
        fresh.replace(data_dir / FILE)
