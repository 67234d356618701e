"""Fill in the metadata that both wheels take from the checkout's pyproject.toml (a hook of hatchling).

A wheel's own pyproject.toml names the dependency groups that become its dependencies and its extras, so that every
dependency is written once, where the locks are made from.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Final

from hatchling.metadata.plugin.interface import MetadataHookInterface

CHECKOUT: Final = Path(__file__).parent.parent
SHARED: Final = ("requires-python", "license", "authors", "keywords", "classifiers")


class SharedMetadata(MetadataHookInterface):
    """Read `dependencies` (a group), `extras` (groups) and `same-version` (distributions) from the hook's table."""

    def update(self, metadata: dict[str, Any]) -> None:
        """Set the fields that the wheel's pyproject.toml lists as dynamic."""
        checkout = tomllib.loads((CHECKOUT / "pyproject.toml").read_text("utf-8"))
        groups = checkout["dependency-groups"]
        same_version = [f"{name}=={metadata['version']}" for name in self.config.get("same-version", [])]
        metadata.update({field: checkout["project"][field] for field in SHARED})
        metadata["dependencies"] = [*same_version, *groups[self.config["dependencies"]]]
        metadata["optional-dependencies"] = {name: groups[name] for name in self.config["extras"]}
