"""Places that a rule can be about: destinations, nodes, links and checkpoints, chosen by matchers. A side of the graph
(rule 18) has rules of its own without being chosen."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Annotated, Protocol, TypeVar

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from lagloss_server.model.flow import Flow
from lagloss_server.model.matchers import PLACE_LABELS, Matcher, match_all
from lagloss_server.model.place import Place, PlaceKind

MAX_MATCHERS = 10


def places_of(flow: Flow, kind: PlaceKind) -> tuple[Place, ...]:
    """Return the places of a kind, in the order of the flow."""
    names = {
        "destination": tuple(name for name in flow.steps if not flow.following(name)),
        "node": flow.nodes,
        "link": tuple(link.name for link in flow.links),
        "checkpoint": flow.checkpoints,
        "side": (),
        "retrier": flow.retriers,
    }
    return tuple(Place(kind, name) for name in names[kind])


def _as_list(value: object) -> object:
    return (value,) if isinstance(value, str) else value


def _of_one_kind(texts: tuple[str, ...]) -> tuple[str, ...]:
    """Return matchers of places as they were written, if they are of one label that places have."""
    labels = sorted({Matcher.parse(text).label for text in texts})
    unknown = [label for label in labels if label not in PLACE_LABELS]
    if unknown:
        raise ValueError(f"expected a matcher on one of {', '.join(PLACE_LABELS)}, found {unknown[0]}")
    if len(labels) > 1:
        raise ValueError(f"expected matchers on a single label, found {' and '.join(labels)}")
    return texts


_TEXT = {"type": "string"}
At = Annotated[
    tuple[str, ...],
    BeforeValidator(_as_list),
    AfterValidator(_of_one_kind),
    Field(max_length=MAX_MATCHERS),
    WithJsonSchema({"anyOf": [_TEXT, {"type": "array", "items": _TEXT, "maxItems": MAX_MATCHERS}]}),
]
"""The places of an entry of a rule, by matchers, all of which have to match; none: the whole pipeline."""


class PlacedSettings(Protocol):
    """Settings of a rule, for the places that it names."""

    @property
    def at(self) -> tuple[str, ...]: ...


S = TypeVar("S", bound=PlacedSettings)


def kind_of(places: Sequence[str]) -> PlaceKind | None:
    """Return the kind of places that these matchers choose; None: they are of the whole pipeline."""
    return next((kind for kind in PLACE_LABELS if places and Matcher.parse(places[0]).label == kind), None)


def chosen(flow: Flow, places: Sequence[str]) -> list[Place]:
    """Return the places that all of these matchers match, in the order of the flow."""
    kind, matchers = kind_of(places), [Matcher.parse(text) for text in places]
    if kind is None:
        return []
    return [place for place in places_of(flow, kind) if match_all(matchers, {kind: place.name})]


def spread(entries: Sequence[S], flow: Flow, with_targets: Iterable[Place] = ()) -> list[tuple[Place | None, S]]:
    """Return each place with the settings of the first entry that chooses it; None is the whole pipeline, which comes
    first. `with_targets`: places that have a target of their own, to which the pipeline's entry applies as well."""
    settings_by_place: dict[Place | None, S] = {}
    whole = of_pipeline(entries)
    if whole is not None:
        settings_by_place[None] = whole
    for entry in entries:
        for place in chosen(flow, entry.at):
            settings_by_place.setdefault(place, entry)
    if whole is not None:
        for place in with_targets:
            settings_by_place.setdefault(place, whole)
    return list(settings_by_place.items())


def of_pipeline(entries: Sequence[S]) -> S | None:
    """Return the entry for the whole pipeline, if there is one."""
    return next((entry for entry in entries if not entry.at), None)


def untaken(entries: Sequence[S], flow: Flow) -> dict[int, str]:
    """Return, by an entry's position, why it applies to nothing: it matches no place, or earlier entries have all of
    its places."""
    taken: set[Place | None] = set()
    problems: dict[int, str] = {}
    for index, entry in enumerate(entries):
        places: set[Place | None] = set(chosen(flow, entry.at)) if entry.at else {None}
        words = " ".join(entry.at)
        if not places:
            problems[index] = f"expected a {kind_of(entry.at)} of this pipeline, found {words}"
        elif places <= taken:
            problems[index] = f"expected each place only once, found {words or 'the whole pipeline'} twice"
        taken |= places
    return problems
