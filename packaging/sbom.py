"""Write a bill of materials (CycloneDX 1.6, JSON) for each wheel and image: `make sbom`.

Packages, their licences and versions are those of this environment, which has to be what the locks say; jars are those
of their lock, and Spark's own. An image's Debian packages are in none: `docker buildx build --sbom=true` lists them.

The same packages make the same bytes: the serial number follows from the content, and the time is SOURCE_DATE_EPOCH,
which `make sbom` sets to the commit's. Without it, a bill has none.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tomllib
import uuid
import zipfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lagloss import __version__
from lagloss_server.ops import jars

CHECKOUT: Final = Path(__file__).parent.parent
UNUSED: Final = CHECKOUT / "deploy" / "unused.txt"
SCRIPTS: Final = {"plotly.js-basic-dist-min": "4.1.1", "regenerator-runtime": "0.14.1"}
_PIN: Final = re.compile(r"^([\w.-]+)==([^ ;\\\n]+)", re.MULTILINE)
_JAR: Final = re.compile(r"(.+?)-(\d[^-]*(?:-.+)?)")
_POM: Final = re.compile(r"META-INF/maven/[^/]+/[^/]+/pom\.properties")

Component = dict[str, Any]


@dataclass(frozen=True)
class Delivery:
    """A wheel or image, the lock that its packages are in, and the dependency groups they follow from; none: all."""

    name: str
    kind: str
    lock: str
    groups: tuple[str, ...] = ()
    wheels: tuple[str, ...] = ()
    has_scripts: bool = True
    has_jars: bool = False


BOTH: Final = ("lagloss", "lagloss-server")
DELIVERIES: Final = (
    Delivery("lagloss", "library", "requirements.txt", ("sdk",), has_scripts=False),
    Delivery("lagloss-server", "application", "requirements.txt", ("sdk", "server"), ("lagloss",)),
    Delivery("image-services", "container", "deploy/requirements.txt", wheels=BOTH),
    Delivery("image-aggregator", "container", "deploy/requirements-aggregator.txt", wheels=BOTH, has_jars=True),
)


class OutOfDate(Exception):
    """This environment is not what the locks say: {names}. Run `make setup`."""


def pins(lock: str) -> dict[str, set[str]]:
    """Return the versions of each package of a lock, one for each environment that it is made for."""
    found: dict[str, set[str]] = {}
    for name, version in _PIN.findall((CHECKOUT / lock).read_text()):
        found.setdefault(canonicalize_name(name), set()).add(version)
    return found


def needed(requirements: Iterable[Requirement], known: Mapping[str, Component]) -> Iterator[str]:
    """Yield the packages that these requirements name in this environment."""
    for requirement in requirements:
        name = canonicalize_name(requirement.name)
        if name in known and (requirement.marker is None or requirement.marker.evaluate({"extra": ""})):
            yield name


def edges(name: str, extras: Iterable[str], known: Mapping[str, Component]) -> dict[str, set[str]]:
    """Return the packages that a package needs, each with the extras of it that are asked for."""
    found: dict[str, set[str]] = {}
    for requirement in map(Requirement, metadata.requires(name) or ()):
        target = canonicalize_name(requirement.name)
        marker = requirement.marker
        if target in known and (marker is None or any(marker.evaluate({"extra": extra}) for extra in ("", *extras))):
            found.setdefault(target, set()).update(requirement.extras)
    return found


def closure(roots: Iterable[Requirement], known: Mapping[str, Component]) -> dict[str, set[str]]:
    """Return every package that the roots lead to, each with the packages it needs."""
    extras: dict[str, set[str]] = {}
    waiting = [(name, set(root.extras)) for root in roots for name in needed([root], known)]
    while waiting:
        name, asked = waiting.pop()
        if name not in extras or asked - extras[name]:
            extras[name] = extras.get(name, set()) | asked
            waiting += edges(name, extras[name], known).items()
    return {name: set(edges(name, asked, known)) for name, asked in extras.items()}


def installed() -> dict[str, Component]:
    """Return this environment's packages as components, by canonical name."""
    command = [sys.executable, "-m", "cyclonedx_py", "environment", "--no-validate", "--output-reproducible"]
    done = subprocess.run([*command, sys.executable], capture_output=True, check=True)
    return {canonicalize_name(each["name"]): each for each in json.loads(done.stdout)["components"]}


def scripts() -> Iterator[Component]:
    """Yield the JavaScript that lies in the dashboard's folder (decision 22)."""
    for name, version in SCRIPTS.items():
        yield _component(name, version, f"pkg:npm/{name}@{version}", licenses=[{"license": {"id": "MIT"}}])


def locked_jars() -> Iterator[Component]:
    """Yield the jars of Spark's Kafka connector; no image holds the broker's."""
    for jar in jars.SPARK.locked():
        yield _jar(*jar.coordinates.split(":"), jar.sha256)


def spark_jars() -> Iterator[Component]:
    """Yield the jars inside pyspark that images keep; those that name no group of Maven's have no package URL."""
    home = jars.require_spark()
    patterns = [line for line in UNUSED.read_text().splitlines() if line.startswith("pyspark/jars/")]
    unused = {path for pattern in patterns for path in home.parent.glob(pattern)}
    for path in sorted(set((home / "jars").glob("*.jar")) - unused):
        group, name, version = _coordinates(path)
        yield _jar(group, name, version, jars.sha256_of(path))


def _coordinates(path: Path) -> tuple[str, str, str]:
    """Return group, name and version as the jar itself says, else as its file is called, without a group."""
    with zipfile.ZipFile(path) as jar:
        for entry in filter(_POM.fullmatch, jar.namelist()):
            lines = jar.read(entry).decode("utf-8", "replace").splitlines()
            said = dict(line.split("=", 1) for line in lines if "=" in line and not line.startswith("#"))
            name, version = said.get("artifactId", ""), said.get("version", "")
            if path.stem == f"{name}-{version}" or path.stem.startswith(f"{name}-{version}-"):
                return said.get("groupId", ""), name, version
    return "", *_split(path.name)


def _split(file: str) -> tuple[str, str]:
    found = _JAR.fullmatch(file.removesuffix(".jar"))
    assert found is not None, file
    return found[1], found[2]


def _jar(group: str, name: str, version: str, sha256: str) -> Component:
    purl = f"pkg:maven/{group}/{name}@{version}?type=jar" if group else None
    hashes = [{"alg": "SHA-256", "content": sha256}]
    return _component(name, version, purl, sha256, **({"group": group} if group else {}), hashes=hashes)


def _component(name: str, version: str, purl: str | None, reference: str | None = None, **more: Any) -> Component:
    named = {"type": "library", "bom-ref": reference or purl, "name": name, "version": version, **more}
    return named | ({"purl": purl} if purl else {})


def bill(delivery: Delivery, environment: Mapping[str, Component], created: datetime | None) -> dict[str, Any]:
    """Return the bill of one delivery, with the time of its creation if that is given.

    Raises:
        OutOfDate: a package of the lock has another version here.
    """
    locked = pins(delivery.lock)
    known = {name: each for name, each in environment.items() if name in locked}
    wrong = sorted(name for name, each in known.items() if each["version"] not in locked[name])
    if wrong:
        raise OutOfDate(", ".join(wrong))
    groups = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())["dependency-groups"]
    roots = [Requirement(text) for group in delivery.groups for text in groups[group]] or list(map(Requirement, known))
    graph = closure(roots, known)
    components = [known[name] for name in sorted(graph)]
    own = [_component(name, __version__, f"pkg:pypi/{name}@{__version__}", **_OURS) for name in delivery.wheels]
    others = [*own, *(scripts() if delivery.has_scripts else ())]
    if delivery.has_jars:
        others += [*spark_jars(), *locked_jars()]  # the lock knows the group of a jar that is in both
    subject = _component(delivery.name, __version__, None, "subject", **_OURS) | {"type": delivery.kind}
    if delivery.kind != "container":
        subject["purl"] = f"pkg:pypi/{delivery.name}@{__version__}"
    direct = sorted({known[name]["bom-ref"] for name in needed(roots, known)} | {each["bom-ref"] for each in others})
    needs = {
        known[name]["bom-ref"]: sorted(known[other]["bom-ref"] for other in others_of)
        for name, others_of in graph.items()
    }
    unique = {each["bom-ref"]: each for each in [*components, *others]}
    document = {
        "$schema": "http://cyclonedx.org/schema/bom-1.6.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            **({"timestamp": created.strftime("%Y-%m-%dT%H:%M:%SZ")} if created else {}),
            "component": subject,
            "supplier": {"name": "lagloss developers"},
        },
        "components": list(unique.values()),
        "dependencies": [
            {"ref": "subject", "dependsOn": direct},
            *({"ref": reference, "dependsOn": targets} for reference, targets in sorted(needs.items())),
        ],
    }
    return document | {"serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(document)).urn}


_OURS: Final = {"licenses": [{"license": {"id": "Apache-2.0"}}]}


def write(folder: Path) -> list[Path]:
    """Write all bills into the folder; return their paths."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH")
    created = datetime.fromtimestamp(int(epoch), UTC) if epoch else None
    environment = installed()
    folder.mkdir(parents=True, exist_ok=True)
    paths = []
    for delivery in DELIVERIES:
        path = folder / f"{delivery.name}-{__version__}.cdx.json"
        path.write_text(json.dumps(bill(delivery, environment, created), indent=1) + "\n")
        paths.append(path)
    return paths


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="write bills of materials")
    parser.add_argument("folder", type=Path)
    for written in write(parser.parse_args().folder):
        print(written)  # noqa: T201
