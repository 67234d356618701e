"""Spark as the aggregator's image has it: without what deploy/unused.txt lists."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pyspark

ROOT = Path(__file__).parents[2]
PACKAGES = Path(pyspark.__file__).parents[1]


def prune() -> ModuleType:
    """The script deploy/prune.py, as a module."""
    spec = importlib.util.spec_from_file_location("prune", ROOT / "deploy" / "prune.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def unused_paths() -> set[Path]:
    """What the images lack of the packages that this environment has as well."""
    script = prune()
    return set(script.matches(PACKAGES, script.read_patterns(script.UNUSED.read_text())))


def image_spark(home: Path) -> Path:
    """Fill a folder with links to the files of Spark that the image has, for SPARK_HOME; return it."""
    unused = unused_paths()
    for folder in (PACKAGES / "pyspark", PACKAGES / "pyspark" / "jars"):
        target = home / folder.relative_to(PACKAGES / "pyspark")
        target.mkdir(parents=True)
        for path in folder.iterdir():
            if path not in unused and path.name != "jars":
                (target / path.name).symlink_to(path)
    assert len(list((home / "jars").iterdir())) < len(list((PACKAGES / "pyspark" / "jars").iterdir()))
    return home
