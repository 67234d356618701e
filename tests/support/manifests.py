"""What the chart renders, and its containers as a kubelet would start them: with variables and files."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from tests.programs import need

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "helm" / "lagloss"
EXAMPLES = CHART / "examples"
NAMESPACE = "monitoring"
RELEASE = "lagloss"
PRODUCTION = ("production",)
ON_KUBERNETES = ("production", "spark-kubernetes")
"""Value files that are laid one over the other."""

Manifest = dict[str, Any]


def helm(*words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run helm."""
    return subprocess.run([need("helm"), *map(str, words)], capture_output=True, text=True, timeout=60, check=False)


@cache
def rendered(*values: str, overrides: tuple[str, ...] = ()) -> tuple[Manifest, ...]:
    """Return all manifests of a release with these value files of the examples."""
    files = [word for name in values for word in ("--values", EXAMPLES / f"{name}.yaml")]
    settings = [word for override in overrides for word in ("--set", override)]
    done = helm("template", RELEASE, CHART, "--namespace", NAMESPACE, *files, *settings)
    assert done.returncode == 0, done.stderr
    return tuple(manifest for manifest in yaml.safe_load_all(done.stdout) if manifest)


def of_kind(manifests: tuple[Manifest, ...], *kinds: str) -> dict[str, Manifest]:
    """Return those of these kinds, by name."""
    return {each["metadata"]["name"]: each for each in manifests if each["kind"] in kinds}


@dataclass(frozen=True)
class Workload:
    """A workload's pod: its name, labels and spec; `spec` has one container."""

    name: str
    labels: dict[str, str]
    spec: dict[str, Any]

    @property
    def component(self) -> str:
        return self.labels["app.kubernetes.io/component"]

    @property
    def container(self) -> dict[str, Any]:
        (container,) = self.spec["containers"]
        return dict(container)

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", ())}

    @property
    def env(self) -> dict[str, str]:
        """The variables that have values; `$(POD_NAME)` is what it becomes."""
        pod = f"{self.name}-0"
        values = {each["name"]: each["value"] for each in self.container["env"] if "value" in each}
        return {name: value.replace("$(POD_NAME)", pod) for name, value in values.items()}

    @property
    def secrets(self) -> set[str]:
        """The Secrets that it needs."""
        volumes = self.spec["volumes"]
        projected = [source for volume in volumes for source in volume.get("projected", {}).get("sources", ())]
        return {source["secret"]["name"] for source in projected if "secret" in source} | {
            volume["secret"]["secretName"] for volume in volumes if "secret" in volume
        }

    def matches(self, selector: dict[str, str]) -> bool:
        return selector.items() <= self.labels.items()

    def files(self, manifests: tuple[Manifest, ...]) -> Iterator[tuple[str, str]]:
        """Yield the path and text of every file that is mounted; of a Secret, `NAME/KEY` is its text."""
        mounts = {mount["name"]: mount["mountPath"] for mount in self.container["volumeMounts"]}
        maps = of_kind(manifests, "ConfigMap")
        for volume in self.spec["volumes"]:
            at = mounts[volume["name"]]
            for source in volume.get("projected", {}).get("sources", ()):
                ((_, given),) = source.items()
                for item in given["items"]:
                    yield f"{at}/{item['path']}", f"{given['name']}/{item['key']}"
            if "configMap" in volume:
                for key, text in maps[volume["configMap"]["name"]]["data"].items():
                    yield f"{at}/{key}", text

    def started_in(self, folder: Path, manifests: tuple[Manifest, ...]) -> dict[str, str]:
        """Write the files below a folder; return the variables, which name them there."""
        for path, text in self.files(manifests):
            file = folder / path.lstrip("/")
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text)
        given = [mount["mountPath"] for mount in self.container["volumeMounts"] if mount.get("readOnly")]
        found = self.env
        for name, value in found.items():
            for path in given:
                if path in value:
                    found[name] = value.replace(path, f"{folder}{path}")
        return found


def workloads(manifests: tuple[Manifest, ...]) -> dict[str, Workload]:
    """Return the pods of all workloads, by component."""
    found = {}
    for manifest in of_kind(manifests, "Deployment", "StatefulSet", "Job").values():
        template = manifest["spec"]["template"]
        pod = Workload(manifest["metadata"]["name"], template["metadata"]["labels"], template["spec"])
        found[pod.component] = pod
    return found


def executor_template(manifests: tuple[Manifest, ...]) -> Manifest:
    """Return the pod that Spark makes its executors from."""
    text = of_kind(manifests, "ConfigMap")[f"{RELEASE}-aggregator-spark"]["data"]["executor.yaml"]
    template: Manifest = yaml.safe_load(text)
    return template
