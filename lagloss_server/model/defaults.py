"""Defaults: the SLA and alerting rules of classes of pipelines, merged into the definitions whose labels match."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from lagloss_server.base.fields import MAX_LISTED, Description, Name, Strict
from lagloss_server.base.invalid import Path
from lagloss_server.model.alert_rules import Alerts
from lagloss_server.model.definition import Labels, Sla

_SETTINGS: Final = ("sla", "alerts")
"""The keys of `spec` that a class of pipelines can have."""


class DefaultsMetadata(Strict):
    name: Name
    description: Description = ""


class DefaultsClass(Strict):
    """Settings of the pipelines that have all labels of `match`; of no labels, all pipelines have them."""

    match: Labels
    sla: Sla = Field(default_factory=Sla)
    alerts: Alerts = Field(default_factory=Alerts)


class Defaults(Strict):
    """Settings of classes of pipelines, in the order in which they are merged: a later one wins."""

    api_version: Literal["lagloss/v1"] = Field(alias="apiVersion")
    kind: Literal["Defaults"]
    metadata: DefaultsMetadata
    spec: Annotated[tuple[DefaultsClass, ...], Field(min_length=1, max_length=MAX_LISTED)]

    @property
    def name(self) -> str:
        return self.metadata.name


@dataclass(frozen=True, slots=True)
class ClassSettings:
    """The settings of one class as they were written, with the name of the `Defaults` that has them."""

    defaults: str
    match: Mapping[str, str]
    settings: Mapping[str, object]


@dataclass(frozen=True, slots=True)
class MergedDocument:
    """A pipeline's document with defaults, and the name of the `Defaults` for each value that it got from some."""

    data: Any
    origins: Mapping[Path, str]


def classes_of(defaults: Defaults, data: Any) -> list[ClassSettings]:
    """Return the classes of a valid document of defaults: `data`, in which only what is written has a key."""
    return [
        ClassSettings(defaults.name, valid.match, {key: written[key] for key in _SETTINGS if key in written})
        for valid, written in zip(defaults.spec, data["spec"], strict=True)
    ]


def with_defaults(data: Any, classes: Iterable[ClassSettings]) -> MergedDocument:
    """Merge the settings of all classes that match into a pipeline's document, which may be invalid.

    Mappings are merged key by key; any other value replaces the one before. Of several classes a later one wins, and
    what the pipeline specifies itself wins over all.
    """
    labels, spec = _at(data, "metadata", "labels"), _at(data, "spec")
    matching = [settings for settings in classes if _matches(settings.match, labels)]
    if not isinstance(spec, Mapping) or not matching:
        return MergedDocument(data, {})
    merged: dict[str, Any] = {}
    for settings in matching:
        merged = _overlaid(merged, _tagged(settings.settings, settings.defaults))
    own = {key: spec[key] for key in _SETTINGS if key in spec}
    merged = _overlaid(merged, _tagged(own, None))
    return MergedDocument({**data, "spec": {**spec, **_values(merged)}}, dict(_origins(merged, ("spec",))))


@dataclass(frozen=True, slots=True)
class _Tagged:
    """A value that is not merged with others; `defaults`: the name of those that it comes from, if from any."""

    value: object
    defaults: str | None


def _at(part: Any, *keys: str) -> Any:
    for key in keys:
        part = part.get(key) if isinstance(part, Mapping) else None
    return part


def _matches(match: Mapping[str, str], labels: object) -> bool:
    own = labels if isinstance(labels, Mapping) else {}
    return all(own.get(name) == value for name, value in match.items())


def _tagged(part: object, defaults: str | None) -> Any:
    if isinstance(part, Mapping):
        return {key: _tagged(value, defaults) for key, value in part.items()}
    return _Tagged(part, defaults)


def _overlaid(below: Any, above: Any) -> Any:
    if not (isinstance(below, dict) and isinstance(above, dict)):
        return above
    return below | {key: _overlaid(below[key], value) if key in below else value for key, value in above.items()}


def _values(part: Any) -> Any:
    return {key: _values(value) for key, value in part.items()} if isinstance(part, dict) else part.value


def _origins(part: Any, path: Path) -> Iterator[tuple[Path, str]]:
    if isinstance(part, dict):
        for key, value in part.items():
            yield from _origins(value, (*path, key))
    elif part.defaults is not None:
        yield path, part.defaults
