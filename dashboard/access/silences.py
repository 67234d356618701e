"""Silences reach beyond pipelines: which of them a person may see or end, and what those that they set may match."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from dashboard.request.current_user import asking, require_operator
from dashboard.request.grants import Grants
from lagloss_server.base.errors import BadSilence, NotForTeams, UnknownSilence
from lagloss_server.incidents.actions import Silence, pipeline_labels, silences
from lagloss_server.model.matchers import Matcher, reach
from lagloss_server.store.store import Store

BEYOND: Final = "pipelines of your teams and of other teams"
"""Stands for the matchers of a silence that reaches further than the person who asks may see."""
Labels = Mapping[str, Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class HeldSilence:
    """A silence that holds now, as the person who asks may see it, and what it matches in truth."""

    silence: Silence
    matchers: Sequence[Matcher]


def read_silences(store: Store) -> list[HeldSilence]:
    """Return those that hold now and could match something that the person who asks may see, the one that ends first
    first."""
    all_silences = [HeldSilence(silence, silence.parsed) for silence in silences(store.unscoped)]
    if store.is_whole or not all_silences:
        return all_silences
    labels, sees = _labels(store), asking().grants
    return [seen for held in all_silences if (seen := _seen(held, sees, labels)) is not None]


def _seen(held_silence: HeldSilence, grants: Grants, labels: Labels) -> HeldSilence | None:
    reached = reach(held_silence.matchers, labels)
    if not any(map(grants.may_see, reached)):
        return None
    if all(map(grants.may_see, reached)):
        return held_silence
    return HeldSilence(replace(held_silence.silence, matchers=[BEYOND]), held_silence.matchers)


def limited(store: Store, matchers: Sequence[str]) -> list[str]:
    """Return matchers that match what these do, of pipelines that the person who asks may act on.

    Raises:
        BadSilence: one is no matcher, or they match no such pipeline; whether they match another's is not said.
    """
    grants = asking().grants
    if grants.acts_on_all:
        return list(matchers)
    try:
        parsed = [Matcher.parse(text) for text in matchers]
    except ValueError as error:
        _, _, pattern = str(error).partition("found ")
        raise BadSilence(expected="matchers such as pipeline=clicks or rule=~lag.*", found=pattern) from error
    own = sorted(filter(grants.may_act_on, reach(parsed, _labels(store))))
    if not own:
        raise BadSilence(expected="matchers of a pipeline on which you can act", found=" ".join(matchers) or "none")
    if Matcher("pipeline", "=", own[0]) in parsed:
        return list(matchers)
    return [*matchers, f"pipeline=~{'|'.join(own)}"]


def require_whole(store: Store, silence_id: str) -> None:
    """Check that the person who asks may end a silence: that they may act on all that it could match.

    Raises:
        NotAllowed: they may only look, or it reaches further.
        UnknownSilence: none that they may see has this id and holds.
    """
    person = require_operator()
    if person.grants.acts_on_all:
        return
    match = next((silence for silence in read_silences(store) if silence.silence.id == silence_id), None)
    if match is None:
        raise UnknownSilence(id=silence_id)
    if not all(map(person.grants.may_act_on, reach(match.matchers, _labels(store)))):
        raise NotForTeams(name=person.name, what="this silence")


def _labels(store: Store) -> Labels:
    with store.unscoped.engine.connect() as connection:
        return pipeline_labels(connection)
