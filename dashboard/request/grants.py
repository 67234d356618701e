"""What a person may see and do, by pipeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, TypeAlias

Pipelines: TypeAlias = frozenset[str] | None
"""Names of pipelines; None: every one, those to come among them."""


@dataclass(frozen=True, slots=True)
class Grants:
    """Pipelines that a person may see, those that they may act on, and those whose message ids they may see."""

    sees: Pipelines = None
    acts: Pipelines = None
    ids: Pipelines = None

    @property
    def is_whole(self) -> bool:
        """Whether they may see every pipeline."""
        return self.sees is None

    @property
    def acts_on_all(self) -> bool:
        """Whether they may do what concerns no pipeline by itself."""
        return self.acts is None

    def may_see(self, pipeline: str) -> bool:
        return _is_among(pipeline, self.sees)

    def may_act_on(self, pipeline: str) -> bool:
        return _is_among(pipeline, self.acts)

    def may_see_ids(self, pipeline: str) -> bool:
        return _is_among(pipeline, self.ids)


def _is_among(pipeline: str, those: Pipelines) -> bool:
    return those is None or pipeline in those


EVERYTHING: Final = Grants()
ONLY_LOOKS: Final = Grants(acts=frozenset())
NOTHING: Final = Grants(frozenset(), frozenset(), frozenset())
