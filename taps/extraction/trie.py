"""A trie of paths: the steps that several paths have in common once, as arrays that compiled loops go through."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from lagloss_server.model.expressions import Path
from lagloss_server.packing.compiled import U8
from taps.extraction.columns import I64


@dataclass(slots=True)
class PathNode:
    """A place that paths lead to or through; `part`: the number of the path that ends here, -1 if none does."""

    part: int = -1
    children: dict[str | int, PathNode] = field(default_factory=dict)

    @classmethod
    def of(cls, paths: Sequence[Path]) -> PathNode:
        """Return the root of different paths, whose parts are numbered in their order."""
        root = cls()
        for part, path in enumerate(paths):
            node = root
            for step in path:
                node = node.children.setdefault(step, cls())
            node.part = part
        return root

    def parts(self) -> list[int]:
        """Return the parts at and below this place."""
        here = [] if self.part < 0 else [self.part]
        return here + [part for child in self.children.values() for part in child.parts()]


@dataclass(frozen=True, slots=True)
class FlatTrie:
    """The nodes of a trie by number, 0 the root; of each: the first child and the next sibling (-1: none), its step (an
    index, or -1 and a name in `names`) and its part."""

    first_child: I64
    next_sibling: I64
    index: I64
    name_start: I64
    name_size: I64
    part: I64
    names: U8

    @classmethod
    def of(cls, root: PathNode) -> FlatTrie:
        """Return this trie in arrays."""
        rows: list[list[int]] = [[-1, -1, -1, 0, 0, root.part]]
        names = bytearray()
        _add_children(root, 0, rows, names)
        columns: Any = np.array(rows, np.int64).T.copy()
        first, after, index, name_start, name_size, part = columns
        return cls(first, after, index, name_start, name_size, part, np.frombuffer(bytes(names), np.uint8))

    @property
    def arrays(self) -> tuple[Any, ...]:
        return self.first_child, self.next_sibling, self.index, self.name_start, self.name_size, self.part, self.names


def _add_children(node: PathNode, number: int, rows: list[list[int]], names: bytearray) -> None:
    for step, child in node.children.items():
        name = step.encode() if isinstance(step, str) else b""
        index = step if isinstance(step, int) else -1
        rows.append([-1, rows[number][0], index, len(names), len(name), child.part])
        rows[number][0] = len(rows) - 1
        names += name
        _add_children(child, len(rows) - 1, rows, names)
