"""Differences between definitions in what they mean, by dotted path: `spec.nodes[enrich].to: +notify`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from msgspec import UNSET, Struct, UnsetType

from lagloss_server.base.invalid import write_path
from lagloss_server.base.yaml_files import write_flow
from lagloss_server.model.definition import Definition, as_document

_MAX_VALUE: Final = 120
"""Characters of a value in a line of text; a schema can have thousands."""
_IDENTITIES: Final = ("name", "dag")
"""Keys whose values distinguish the items of a list: nodes and jobs. Entries of alerting rules differ in `at`."""


class ValueChange(Struct, frozen=True, omit_defaults=True):
    """A value at a path before and after; unset: it is not there. Lists of names are there whole. `defaults`: the
    name of the defaults that the value after comes from."""

    path: str
    before: Any | UnsetType = UNSET
    after: Any | UnsetType = UNSET
    defaults: str | None = None

    def __str__(self) -> str:
        note = f" (from the defaults {self.defaults})" if self.defaults else ""
        return f"{self.path}: {self._change()}{note}"

    def _change(self) -> str:
        before, after = self.before, self.after
        if before is UNSET:
            return f"+ {_text(after)}"
        if after is UNSET:
            return f"- {_text(before)}"
        if not (_are_texts(before) and _are_texts(after)):
            return f"{_text(before)} -> {_text(after)}"
        added = [f"+{_text(name)}" for name in after if name not in before]
        removed = [f"-{_text(name)}" for name in before if name not in after]
        return " ".join(added + removed) or f"order {_text(before)} -> {_text(after)}"


def differences(before: Definition, after: Definition) -> list[ValueChange]:
    """Return how a definition differs from another; empty if and only if both are equal."""
    return list(_differences(written(before), written(after), ""))


def written(definition: Definition) -> dict[str, Any]:
    """Return a definition as its owner would write it: with all defaults, and without keys that nothing is set for.

    Reading it gives the same definition.
    """
    document: dict[str, Any] = _written(as_document(definition))
    return document


def _written(part: Any) -> Any:
    if isinstance(part, dict):
        return {
            key: value if key == "labels" else _written(value) for key, value in part.items() if _is_set(key, value)
        }
    if isinstance(part, list):
        return [_written(item) for item in part]
    return int(part) if isinstance(part, float) and part.is_integer() else part


def _is_set(key: str, value: Any) -> bool:
    return value not in (None, [], {}) and not (key == "description" and not value)


def _differences(before: Any, after: Any, path: str) -> Iterator[ValueChange]:
    if isinstance(before, dict) and isinstance(after, dict):
        yield from _of_mappings(before, after, path)
        return
    items_before, items_after = _by_identity(before), _by_identity(after)
    if items_before is not None and items_after is not None and (isinstance(before, list) or isinstance(after, list)):
        yield from _of_items(items_before, items_after, path)
    elif before != after:
        yield ValueChange(path, before, after)


def _of_mappings(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[ValueChange]:
    for key in dict.fromkeys((*before, *after)):
        yield from _of_values(before, after, key, _below(path, key))


def _of_items(before: Mapping[str, Any], after: Mapping[str, Any], path: str) -> Iterator[ValueChange]:
    for identity in dict.fromkeys((*before, *after)):
        yield from _of_values(before, after, identity, f"{path}[{_printable(identity)}]")
    order_before = [identity for identity in before if identity in after]
    order_after = [identity for identity in after if identity in before]
    if order_before != order_after:
        yield ValueChange(path, order_before, order_after)


def _of_values(before: Mapping[str, Any], after: Mapping[str, Any], key: str, path: str) -> Iterator[ValueChange]:
    if key in before and key in after:
        yield from _differences(before[key], after[key], path)
    elif key in before and _are_texts(before[key]):
        yield ValueChange(path, before[key], [])
    elif key in after and _are_texts(after[key]):
        yield ValueChange(path, [], after[key])
    else:
        yield ValueChange(path, before.get(key, UNSET), after.get(key, UNSET))


def _by_identity(part: Any) -> dict[str, Any] | None:
    """Return the items of a list by what tells them apart; None if something else does, or nothing. A mapping is a
    list of one item: an alerting rule has an entry, or a list of them."""
    items = part if isinstance(part, list) else [part]
    if not all(isinstance(item, dict) for item in items):
        return None
    named = {_identity(item): item for item in items}
    return named if len(named) == len(items) else None


def _identity(item: Mapping[str, Any]) -> str:
    names = (str(item[key]) for key in _IDENTITIES if key in item)
    return next(names, None) or " ".join(item.get("at", ())) or "pipeline"


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _below(path: str, key: str) -> str:
    step = write_path((key,))
    return f"{path}{'' if step.startswith('[') or not path else '.'}{step}"


def _text(value: Any) -> str:
    if _are_texts(value):
        return ", ".join(map(_text, value))
    text = _printable(write_flow([value])[1:-1])
    return text if len(text) <= _MAX_VALUE else f"{text[:_MAX_VALUE]}…"


def _printable(text: str) -> str:
    return "".join(letter if letter.isprintable() else ascii(letter)[1:-1] for letter in text)
