"""The chart, as Kubernetes and the services read what it renders."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from kubernetes_validate import validate

import lagloss
from aggregator.kernel.spark_reader import AGGREGATOR_JOB
from alerting.config import load_alerting
from dashboard.login.checking import check_binding
from dashboard.reports.schedule.file import load_reports
from lagloss.broker.connection import PREFIX, PROPERTIES, KafkaConnection
from lagloss.broker.connection import SECRETS as KAFKA_SECRETS
from lagloss_server.base.database_url import SECRET_OPTIONS, connection_options
from lagloss_server.base.settings import ENV_PREFIX, SECRETS, Settings
from lagloss_server.ops.spark_session import defaults_in, is_local, session_conf
from tests.programs import need
from tests.support.manifests import (
    CHART,
    EXAMPLES,
    NAMESPACE,
    ON_KUBERNETES,
    PRODUCTION,
    RELEASE,
    ROOT,
    Manifest,
    Workload,
    executor_template,
    helm,
    of_kind,
    rendered,
    workloads,
)

SMALL = ("small",)
ALL = (SMALL, PRODUCTION, ON_KUBERNETES)
OLDEST, NEWEST = "1.25", "1.37"
SERVICES = {"collector", "dashboard", "alerting", "taps", "canary", "aggregator"}
PORT_SETTINGS = {
    "aggregator": "METRICS",
    **{name: name.upper() for name in ("alerting", "canary", "collector", "dashboard", "taps")},
}
NOT_OURS = {"HOME", "POD_NAME", "PYSPARK_PYTHON", "SPARK_CONF_DIR"}
OPERATORS = {"ServiceMonitor", "PrometheusRule"}
"""Kinds of Prometheus' operator, which the schemas of Kubernetes do not have."""

each_release = pytest.mark.parametrize("values", ALL, ids="+".join)


@each_release
def test_helm_finds_no_fault(values: tuple[str, ...]) -> None:
    files = [word for name in values for word in ("--values", EXAMPLES / f"{name}.yaml")]
    done = helm("lint", "--strict", CHART, *files)
    assert done.returncode == 0, done.stdout
    assert "0 chart(s) failed" in done.stdout


@pytest.mark.parametrize(
    ("values", "version"), [(SMALL, NEWEST), (PRODUCTION, NEWEST), (ON_KUBERNETES, NEWEST), (ON_KUBERNETES, OLDEST)]
)
def test_kubernetes_knows_every_field(values: tuple[str, ...], version: str) -> None:
    manifests = rendered(*values)
    names = [(each["kind"], each["metadata"]["name"]) for each in manifests]
    assert len(set(names)) == len(names)
    assert {each["metadata"].get("namespace") for each in manifests} == {NAMESPACE}
    for manifest in manifests:
        if manifest["kind"] not in OPERATORS:
            validate(manifest, version, strict=True)
    if values == ON_KUBERNETES:
        validate(executor_template(manifests), version, strict=True)


def test_a_field_that_kubernetes_does_not_know_is_found() -> None:
    manifest = rendered(*SMALL)[0]
    with pytest.raises(Exception, match="Additional properties are not allowed"):
        validate({**manifest, "sepc": {}}, NEWEST, strict=True)


@each_release
def test_each_variable_is_a_setting_and_the_service_can_use_all_of_them(
    values: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifests = rendered(*values)
    for component, pod in workloads(manifests).items():
        _assert_known(pod)
        for name in [name for name in os.environ if name.startswith(ENV_PREFIX)]:
            monkeypatch.delenv(name)
        with monkeypatch.context() as patched:
            for name, value in pod.started_in(tmp_path / component, manifests).items():
                patched.setenv(name, value)
            settings = Settings()
            options = connection_options(settings.require_database())
            assert options["password"] == f"{_secret_of(pod, 'DATABASE_PASSWORD')}/password"
            _assert_uses_kafka(pod, values)
            if component == "dashboard":
                check_binding(settings)
                assert (load_reports(settings) is not None) == (values != SMALL)
                assert bool(settings.oidc_client_secret) == (settings.login == "oidc") == (values != SMALL)
            if component == "alerting":
                assert len(load_alerting(settings).receivers) == (0 if values == SMALL else 2)


def _assert_known(pod: Workload) -> None:
    ours = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields}
    kafka = {f"{PREFIX}{name}" for name in PROPERTIES}
    secret = {f"{ENV_PREFIX}{name}".upper() for name in SECRETS} | {f"{PREFIX}{name}" for name in KAFKA_SECRETS}
    assert len({each["name"] for each in pod.container["env"]}) == len(pod.container["env"])
    for name, value in pod.env.items():
        plain = re.sub(r"^LAGLOSS_KAFKA_CLUSTER_[A-Z0-9]+_", PREFIX, name)
        setting = plain.removesuffix("_FILE") if plain.removesuffix("_FILE") in secret else plain
        assert setting in ours | kafka | NOT_OURS | {f"{PREFIX}BOOTSTRAP"}, name
        if name == "LAGLOSS_DATABASE_URL":
            assert not SECRET_OPTIONS & connection_options(value).keys()
        else:
            assert plain not in secret, f"{name} holds a secret"


def _assert_uses_kafka(pod: Workload, values: tuple[str, ...]) -> None:
    connection = KafkaConnection.of_environment()
    if pod.component == "alerting":  # it needs none, so it gets none
        assert connection is None
        return
    assert connection is not None
    if values == SMALL:
        assert connection.properties == {}
        return
    given = connection.properties
    assert (given["security.protocol"], given["sasl.mechanism"]) == ("SASL_SSL", "SCRAM-SHA-512")
    assert given["sasl.username"].startswith("lagloss-")
    assert given["sasl.password"] == f"{_secret_of(pod, 'KAFKA_SASL_PASSWORD')}/password"
    assert Path(given["ssl.ca.location"]).read_text() == "company-ca/ca.crt"
    if pod.component in ("aggregator", "cli", "taps"):
        assert KafkaConnection.named("orders").properties["sasl.password"] == "lagloss-kafka-orders/password"


def _secret_of(pod: Workload, setting: str) -> str:
    """The name of the Secret whose file the setting names."""
    at = pod.env[f"{ENV_PREFIX}{setting}_FILE"].removeprefix("/run/secrets/lagloss/")
    (volume,) = (volume for volume in pod.spec["volumes"] if volume["name"] == "secrets")
    sources = [source["secret"] for source in volume["projected"]["sources"] if "secret" in source]
    (name,) = (each["name"] for each in sources if any(item["path"] == at for item in each["items"]))
    return str(name)


@each_release
def test_no_secret_is_made_or_shown(values: tuple[str, ...]) -> None:
    manifests = rendered(*values)
    assert of_kind(manifests, "Secret") == {}
    if values != SMALL:  # each component with a user and a role of its own
        for setting in ("DATABASE_PASSWORD", "KAFKA_SASL_PASSWORD"):
            pods = [pod for pod in workloads(manifests).values() if f"{ENV_PREFIX}{setting}_FILE" in pod.env]
            assert len({_secret_of(pod, setting) for pod in pods}) == len(pods) >= len(SERVICES)


def test_every_secret_that_production_needs_is_named_in_the_documentation() -> None:
    page = (ROOT / "docs" / "kubernetes.md").read_text()
    for pod in workloads(rendered(*ON_KUBERNETES)).values():
        for name in pod.secrets:
            assert f"`{name}`" in page, name


@each_release
def test_selectors_find_what_they_mean(values: tuple[str, ...]) -> None:
    manifests = rendered(*values)
    pods = workloads(manifests)
    for manifest in of_kind(manifests, "Deployment", "StatefulSet").values():
        selector = manifest["spec"]["selector"]["matchLabels"]
        assert [pod.name for pod in pods.values() if pod.matches(selector)] == [manifest["metadata"]["name"]]
    for name, service in of_kind(manifests, "Service").items():
        found = [pod for pod in pods.values() if pod.matches(service["spec"]["selector"])]
        assert [pod.name for pod in found] == [f"{RELEASE}-aggregator" if name == f"{RELEASE}-drivers" else name]
        assert {port["targetPort"] for port in service["spec"]["ports"]} <= found[0].ports.keys()
    budgets = of_kind(manifests, "PodDisruptionBudget")
    assert budgets.keys() == (set() if values == SMALL else {f"{RELEASE}-{name}" for name in SERVICES})
    for name, budget in budgets.items():
        assert [pod.name for pod in pods.values() if pod.matches(budget["spec"]["selector"]["matchLabels"])] == [name]
    for name, ingress in of_kind(manifests, "Ingress").items():
        (rule,) = ingress["spec"]["rules"]
        (path,) = rule["http"]["paths"]
        assert (path["backend"]["service"]["name"], path["backend"]["service"]["port"]["name"]) == (name, "http")
        assert [rule["host"]] == ingress["spec"]["tls"][0]["hosts"]
    for name, binding in of_kind(manifests, "RoleBinding").items():
        assert binding["roleRef"]["name"] in of_kind(manifests, "Role")
        assert [subject["name"] for subject in binding["subjects"]] == [name]
    accounts = of_kind(manifests, "ServiceAccount")
    assert {pod.spec["serviceAccountName"] for pod in pods.values()} <= accounts.keys()
    for monitor in of_kind(manifests, "ServiceMonitor").values():
        labels, (expression,) = (monitor["spec"]["selector"][key] for key in ("matchLabels", "matchExpressions"))
        watched = [
            name
            for name, service in of_kind(manifests, "Service").items()
            if labels.items() <= service["metadata"]["labels"].items()
            and service["metadata"]["labels"][expression["key"]] in expression["values"]
        ]
        assert sorted(watched) == sorted(f"{RELEASE}-{name}" for name in SERVICES)


@each_release
def test_ports_are_those_that_the_services_listen_on_and_find_each_other_by(values: tuple[str, ...]) -> None:
    manifests = rendered(*values)
    services = of_kind(manifests, "Service")
    pods = workloads(manifests)
    for component in SERVICES:
        pod = pods[component]
        assert pod.env[f"LAGLOSS_{PORT_SETTINGS[component]}_PORT"] == str(pod.ports["http"])
        for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
            asked = pod.container[probe]["httpGet"]
            assert asked["port"] == "http"
            assert asked["path"] == ("/livez" if probe != "readinessProbe" else _readiness(component, values))
        for name in SERVICES:
            service = services[f"{RELEASE}-{name}"]["spec"]["ports"][0]
            variable = "LAGLOSS_DASHBOARD_HEALTH_URL" if name == "dashboard" else f"LAGLOSS_{name.upper()}_URL"
            assert pod.env[variable] == f"http://{RELEASE}-{name}.{NAMESPACE}.svc:{service['port']}"


def _readiness(component: str, values: tuple[str, ...]) -> str:
    if component in ("aggregator", "canary"):
        return "/readyz?exclude=lease"  # decisions/0024
    if component == "collector":  # its spool is for a Kafka away, its cache for a PostgreSQL away
        return "/livez" if values != SMALL else "/readyz?exclude=postgresql"
    return "/readyz"


@each_release
def test_every_pod_is_one_that_a_restricted_namespace_admits(values: tuple[str, ...]) -> None:
    """The standard "restricted" of Kubernetes, and files that cannot be changed."""
    manifests = rendered(*values)
    pods = {component: pod.spec for component, pod in workloads(manifests).items()}
    if values == ON_KUBERNETES:
        pods["executor"] = executor_template(manifests)["spec"]
    for component, spec in pods.items():
        assert spec["securityContext"]["runAsNonRoot"], component
        assert spec["securityContext"]["runAsUser"] == 10_001
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
        assert {"/data", "/tmp"} <= set(mounts.values())  # where they may write
        claims = {"data"} if component == "collector" and values != SMALL else set()
        assert mounts.keys() == {volume["name"] for volume in spec["volumes"]} | claims
        assert not spec["enableServiceLinks"]  # else LAGLOSS_COLLECTOR_PORT=tcp://…
        speaks_to_the_api = component == "aggregator" and values == ON_KUBERNETES
        assert spec["automountServiceAccountToken"] == speaks_to_the_api


@each_release
def test_images_are_those_of_the_dockerfile(values: tuple[str, ...]) -> None:
    dockerfile = (ROOT / "deploy" / "Dockerfile").read_text()
    assert {"services", "aggregator"} <= set(re.findall(r"^FROM \S+ AS (\w+)$", dockerfile, re.MULTILINE))
    assert re.findall(r"^USER (\d+):\1$", dockerfile, re.MULTILINE)[-1] == "10001"
    for component, pod in workloads(rendered(*values)).items():
        name, _, tag = pod.container["image"].rpartition("/")[2].partition("@" if values != SMALL else ":")
        assert name == ("lagloss-aggregator" if component in ("aggregator", "taps", "dashboard") else "lagloss")
        assert tag == lagloss.__version__ if values == SMALL else re.fullmatch("sha256:[0-9a-f]{64}", tag)
        module = pod.container["command"][-1]
        assert module == "infinity" or (ROOT / module.replace(".", "/")).is_dir() or component == "prepare"


def test_the_chart_has_the_version_of_the_services() -> None:
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (lagloss.__version__, lagloss.__version__)


@each_release
def test_tables_are_made_before_anything_that_is_no_hook_is_there(values: tuple[str, ...]) -> None:
    manifests = rendered(*values)
    (job,) = of_kind(manifests, "Job").values()
    pod = workloads(manifests)["prepare"]
    assert pod.container["command"] == ["python", "-m", "lagloss_server.ops.prepare"]
    hooks = [each for each in manifests if "helm.sh/hook" in each["metadata"].get("annotations", {})]
    assert {each["metadata"]["annotations"]["helm.sh/hook"] for each in hooks} == {"pre-install,pre-upgrade"}
    assert {each["kind"] for each in hooks} == {"Job", "ServiceAccount", "NetworkPolicy"}
    assert {each["metadata"]["name"] for each in hooks} == {pod.spec["serviceAccountName"]}
    assert "helm.sh/hook-weight" not in job["metadata"]["annotations"]  # after the others, whose weight is -1
    assert not [volume for volume in pod.spec["volumes"] if "configMap" in volume]  # of the chart's own


@each_release
def test_the_aggregators_spark_is_set_up_where_its_master_is(
    values: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lagloss_server.ops.jars.spark_jars", lambda: [Path("connector.jar")])
    manifests = rendered(*values)
    pod = workloads(manifests)["aggregator"]
    env = pod.started_in(tmp_path, manifests)
    conf = session_conf(
        AGGREGATOR_JOB,
        env["LAGLOSS_SPARK_MASTER"],
        env["LAGLOSS_SPARK_DRIVER_MEMORY"],
        tmp_path,
        env.get("LAGLOSS_SPARK_DRIVER_HOST", ""),
        defaults_in(Path(env["SPARK_CONF_DIR"], "spark-defaults.conf")),
    )
    if values != ON_KUBERNETES:
        assert conf["spark.master"] == "local[2]"
        assert is_local(conf["spark.master"])
        return
    assert conf["spark.master"] == "k8s://https://kubernetes.default.svc:443"
    assert conf["spark.driver.host"] == f"{RELEASE}-aggregator-0.{RELEASE}-drivers.{NAMESPACE}.svc"
    (headless,) = (each for each in of_kind(manifests, "Service").values() if each["spec"].get("clusterIP") == "None")
    (stateful,) = (each for each in of_kind(manifests, "StatefulSet").values() if "aggregator" in str(each["metadata"]))
    assert stateful["spec"]["serviceName"] == headless["metadata"]["name"] == f"{RELEASE}-drivers"
    assert {conf["spark.driver.port"], conf["spark.driver.blockManager.port"]} <= {*map(str, pod.ports.values())}
    assert conf["spark.kubernetes.container.image"] == pod.container["image"]
    assert conf["spark.kubernetes.namespace"] == NAMESPACE
    assert conf["spark.kubernetes.authenticate.executor.serviceAccountName"] in of_kind(manifests, "ServiceAccount")
    assert conf["spark.dynamicAllocation.enabled"] == "true"  # a stand-by has no executors
    assert conf["spark.dynamicAllocation.executorIdleTimeout"] == "600s"  # the release's own, not ours
    template = Path(conf["spark.kubernetes.executor.podTemplateFile"].replace("/etc", str(tmp_path / "etc"), 1))
    assert yaml.safe_load(template.read_text()) == executor_template(manifests)


def _admits(policy: Manifest, port: object, peer: str, pods: dict[str, Workload]) -> bool:
    """Whether a policy lets the pods of a component of the release connect to a port."""
    rules = [rule for rule in policy["spec"]["ingress"] if {"port": port} in rule["ports"]]
    return any("from" not in rule or any(_is_peer(each, pods[peer].labels) for each in rule["from"]) for rule in rules)


def _is_peer(peer: dict[str, Any], labels: dict[str, str]) -> bool:
    if "namespaceSelector" in peer or "podSelector" not in peer:
        return False
    found: dict[str, str] = peer["podSelector"]["matchLabels"]
    return found.items() <= labels.items()


def test_network_policies_of_production_let_in_who_is_named_and_the_releases_own() -> None:
    manifests = rendered(*ON_KUBERNETES)
    pods = workloads(manifests)
    pods["executor"] = Workload("executor", executor_template(manifests)["metadata"]["labels"], {})
    policies = of_kind(manifests, "NetworkPolicy")
    for component, pod in pods.items():
        policy = policies[f"{RELEASE}-{component}"]
        assert pod.matches(policy["spec"]["podSelector"]["matchLabels"])
        assert policy["spec"]["policyTypes"] == ["Ingress", "Egress"]
        assert all("from" in rule for rule in policy["spec"]["ingress"])
        reached = yaml.safe_dump(policy["spec"]["egress"])
        assert ("10.20.0.0/24" in reached) == (component != "alerting")
        assert ("10.21.0.0/24" in reached) == (component != "executor")
        assert ("10.96.0.1/32" in reached) == (component == "aggregator")
        assert ("587" in reached) == (component in ("alerting", "canary", "dashboard", "taps", "cli"))
    namespaces = {
        component: {
            peer["namespaceSelector"]["matchLabels"].get("kubernetes.io/metadata.name", "shop")
            for rule in policies[f"{RELEASE}-{component}"]["spec"]["ingress"]
            for peer in rule["from"]
            if "namespaceSelector" in peer
        }
        for component in pods
    }
    assert namespaces == {
        "collector": {"ingress-nginx", "shop", "monitoring"},
        "dashboard": {"ingress-nginx", "monitoring"},
        "alerting": {"monitoring"},
        "taps": {"monitoring"},
        "canary": {"monitoring"},
        "aggregator": {"monitoring"},
        **{name: set() for name in ("prepare", "cli", "executor")},
    }
    aggregator, executor = policies[f"{RELEASE}-aggregator"], policies[f"{RELEASE}-executor"]
    for port in ("driver", "blocks"):
        assert _admits(aggregator, port, "executor", pods)
        assert not _admits(aggregator, port, "dashboard", pods)
    assert _admits(executor, 7079, "aggregator", pods)
    for component in SERVICES:  # `lagloss doctor` asks them
        assert _admits(policies[f"{RELEASE}-{component}"], "http", "cli", pods)


def test_without_names_anyone_may_connect_to_the_services() -> None:
    policies = of_kind(rendered(*SMALL), "NetworkPolicy")
    for component in SERVICES:
        assert policies[f"{RELEASE}-{component}"]["spec"]["ingress"] == [{"ports": [{"port": "http"}]}]


def test_only_those_who_are_named_come_to_a_collector_although_anyone_may_read_metrics() -> None:
    peer = "networkPolicy.collectorFrom[0].podSelector.matchLabels.team=shop"
    (rule,) = of_kind(rendered(*SMALL, overrides=(peer,)), "NetworkPolicy")[f"{RELEASE}-collector"]["spec"]["ingress"]
    assert rule["from"][0] == {"podSelector": {"matchLabels": {"team": "shop"}}}
    assert len(rule["from"]) == 2


@each_release
def test_a_heap_fits_into_its_pod(values: tuple[str, ...]) -> None:
    for component, pod in workloads(rendered(*values)).items():
        limits, requests = pod.container["resources"]["limits"], pod.container["resources"]["requests"]
        assert _mib(requests["memory"]) <= _mib(limits["memory"]), component
        if component == "aggregator":  # beside the heap: the JVM's own, Python, and tasks where they run here
            beside_mib = 768 if values == ON_KUBERNETES else 1_536
            assert _mib(pod.env["LAGLOSS_SPARK_DRIVER_MEMORY"]) + beside_mib <= _mib(limits["memory"])


def _mib(quantity: str) -> int:
    number, unit = re.fullmatch(r"(\d+)([MmGg])i?", quantity).groups()  # type: ignore[union-attr]
    return int(number) * (1_024 if unit in "Gg" else 1)


def test_prometheus_and_grafana_get_the_files_of_deploy(tmp_path: Path) -> None:
    manifests = rendered(*PRODUCTION)
    rules = ROOT / "deploy" / "prometheus" / "rules.yaml"
    (rule,) = of_kind(manifests, "PrometheusRule").values()
    assert rule["spec"] == yaml.safe_load(rules.read_text())
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rule["spec"]))
    subprocess.run([need("promtool"), "check", "rules", tmp_path / "rules.yaml"], capture_output=True, check=True)
    shown = of_kind(manifests, "ConfigMap")[f"{RELEASE}-grafana"]["data"]
    for name, text in shown.items():
        assert text.strip() == (ROOT / "deploy/grafana" / name.removeprefix("lagloss-")).read_text().strip()


def test_without_a_canary_no_alert_misses_it() -> None:
    (rule,) = of_kind(rendered(*PRODUCTION, overrides=("canary.enabled=false",)), "PrometheusRule").values()
    expressions = [rule["expr"] for group in rule["spec"]["groups"] for rule in group["rules"]]
    assert "max(lagloss_canary_ok) < 1" in expressions


@pytest.mark.parametrize(
    ("override", "found"),
    [
        ("collector.replica=2", "/collector/replica"),
        ("settings.LAGLOSS_DATABASE_PASSWORD=hunter2", "LAGLOSS_DATABASE_PASSWORD"),
        ("kafka.properties.sasl\\.password=hunter2", "sasl.password"),
        ("database.parameters.password=hunter2", "password"),
        ("aggregator.spark.master=yarn", "/aggregator/spark/master"),
        ("alerting.kafka.bootstrap=x", "/alerting/kafka"),
        ("image.services.digest=sha256:beef", "/image/services/digest"),
        ("kafka.bootstrap=", "where is Kafka?"),
        ("login.kind=oidc", "login.oidc.issuer"),
        ("ingress.dashboard.enabled=true", "ingress.dashboard.host"),
    ],
)
def test_values_that_cannot_work_are_refused_by_name(override: str, found: str) -> None:
    done = helm("template", RELEASE, CHART, "--values", EXAMPLES / "small.yaml", "--set", override)
    assert done.returncode != 0
    assert found in done.stderr


def test_a_spool_gives_each_collector_a_volume_and_without_one_it_has_no_state() -> None:
    with_spool, without = rendered(*PRODUCTION), rendered(*SMALL)
    claims = of_kind(with_spool, "StatefulSet")[f"{RELEASE}-collector"]["spec"]["volumeClaimTemplates"]
    pod = workloads(with_spool)["collector"]
    assert pod.env["LAGLOSS_SPOOL_DIR"].startswith("/data/")
    assert {"name": claims[0]["metadata"]["name"], "mountPath": "/data"} in pod.container["volumeMounts"]
    assert "LAGLOSS_SPOOL_DIR" not in workloads(without)["collector"].env
    assert f"{RELEASE}-collector" in of_kind(without, "Deployment")


def test_a_collector_scales_by_itself_where_that_is_wished() -> None:
    manifests = rendered(*SMALL, overrides=("collector.autoscaling.enabled=true",))
    (scaler,) = of_kind(manifests, "HorizontalPodAutoscaler").values()
    validate(scaler, OLDEST, strict=True)
    target = of_kind(manifests, "Deployment")[scaler["spec"]["scaleTargetRef"]["name"]]
    assert "replicas" not in target["spec"]
