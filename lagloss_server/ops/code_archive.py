"""The code that executors on other machines run: the packages of this installation, in one archive.

Executors unpack it beside their other files, so it is read from plain files there: the schemas, what a compiler keeps
beside a module, and the Python daemon with the kernel preloaded work as they do on the driver's machine.
"""

from __future__ import annotations

import zipfile
from importlib import resources
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

FOLDER: Final = "lagloss-code"
"""The folder that the archive becomes, below an executor's working directory; on its Python's path from the start."""
_PACKAGES: Final = ("aggregator", "lagloss", "lagloss_server", "taps")


def pack(folder: Path) -> Path:
    """Write the archive into `folder`."""
    archive = folder / f"{FOLDER}.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as code:
        for package in _PACKAGES:
            root = Path(str(resources.files(package)))
            for file in sorted(root.rglob("*")):
                if file.is_file() and "__pycache__" not in file.parts:
                    code.write(file, file.relative_to(root.parent))
    return archive


def ship(spark: SparkSession, folder: Path) -> None:
    """Have every executor fetch and unpack the code before its first task; the archive is made in `folder`."""
    spark.sparkContext.addArchive(f"{pack(folder)}#{FOLDER}")
