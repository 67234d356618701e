"""deploy/unused.txt and the script that deletes what it lists."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from tests.support.image_spark import PACKAGES, ROOT, prune, unused_paths

SCRIPT = ROOT / "deploy" / "prune.py"
# class of a jar that no test of closing loads, and what asks for it
NEEDED = {
    "org/apache/spark/deploy/yarn/Client.class": "master yarn",
    "org/apache/spark/deploy/k8s/submit/KubernetesClientApplication.class": "master k8s",
    "io/fabric8/kubernetes/client/KubernetesClient.class": "master k8s",
    "com/google/crypto/tink/subtle/AesGcmJce.class": "spark.network.crypto.enabled",
    "org/apache/spark/ui/SparkUI.class": "LAGLOSS_SPARK_UI",
    "com/github/luben/zstd/Zstd.class": "compression of Kafka",
    "org/xerial/snappy/Snappy.class": "compression of Kafka",
    "org/apache/spark/deploy/master/Master.class": "a standalone cluster of this image",
}


def packages(prefix: Path, *names: str) -> Path:
    """Installed packages below a prefix: the folders, or folders of files, named so."""
    folder = prefix / "lib" / "python3.11" / "site-packages"
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("x")
    return folder


def pruned(prefix: Path, script: Path = SCRIPT) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, script, prefix], capture_output=True, text=True, check=False)


def test_every_pattern_matches_something_and_comes_under_a_reason() -> None:
    assert unused_paths()  # raises LookupError
    reason = ""
    for line in prune().UNUSED.read_text().splitlines():
        reason = line if line.startswith("#") else reason if line else ""
        assert reason or not line, line


def test_what_is_listed_is_deleted_and_nothing_else(tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "unused.txt").write_text("# tests\n**/tests\n\n# jars\nspark/jars/db-*\nother/data\n")
    names = "spark/tests/a.py", "spark/jars/db-1.jar", "spark/jars/core-1.jar", "spark/core.py"
    folder = packages(tmp_path, *names)
    done = pruned(tmp_path, tmp_path / "prune.py")
    assert (done.returncode, done.stderr) == (0, "")
    left = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    assert left == {"spark/jars/core-1.jar", "spark/core.py"}


def test_a_pattern_of_a_package_that_has_changed_ends_the_build(tmp_path: Path) -> None:
    shutil.copy(SCRIPT, tmp_path)
    (tmp_path / "unused.txt").write_text("# jars\nspark/jars/db-*\n")
    folder = packages(tmp_path, "spark/jars/database-1.jar")
    done = pruned(tmp_path, tmp_path / "prune.py")
    assert (done.returncode, done.stderr) == (1, "prune: nothing matches spark/jars/db-* of deploy/unused.txt\n")
    assert list(folder.rglob("*.jar"))


@pytest.mark.parametrize("name", sorted(NEEDED))
def test_spark_keeps_what_the_docs_promise(name: str) -> None:
    unused = unused_paths()
    kept = [path for path in (PACKAGES / "pyspark" / "jars").glob("*.jar") if path not in unused]
    assert any(name in zipfile.ZipFile(path).namelist() for path in kept), NEEDED[name]


def test_no_package_that_this_code_imports_is_deleted() -> None:
    gone = {str(path.relative_to(PACKAGES)).removesuffix(".py").replace("/", ".") for path in unused_paths()}
    for folder in ("aggregator", "alerting", "canary", "collector", "dashboard", "lagloss", "lagloss_server", "taps"):
        for path in (ROOT / folder).rglob("*.py"):
            imported = re.findall(r"^\s*(?:from|import) ([\w.]+)", path.read_text(), re.MULTILINE)
            assert not [name for name in imported if any(name == each or name.startswith(f"{each}.") for each in gone)]
