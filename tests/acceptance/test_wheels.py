"""Both wheels as their users have them: installed in fresh environments, run in a folder elsewhere, beside files that
have the names of lagloss's own modules."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest

from lagloss_server.ops import jars as lagloss_jars
from lagloss_server.ops.processes import choose_port
from tests.conftest import new_folder
from tests.integration.repository.test_examples import EXPECTED, MESSAGES, left_by
from tests.support.kafka_log import wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1_200)]

ROOT = Path(__file__).parents[2]
SDK_DOWNLOAD_BYTES = 35_000_000
SDK_NEEDS = {"confluent-kafka", "fastavro", "numpy", "xxhash"}
NO_COMPILE = "--no-compile"
"""Half a minute less; what is run compiles itself."""
SERVICES = ("collector", "alerting", "dashboard")
NAMES = ("aggregator", *SERVICES, "pipeline_under_test")
RUN = ("kafka_service", "batch_sink", "fastapi_service", "spark_job")
"""Examples that run to their end, one of each module with packages of its own; test_examples.py runs all of them."""
DEFINITION = """
apiVersion: lagloss/v1
kind: Pipeline
metadata: {name: NAME}
spec: {nodes: [{name: shop}]}
"""


@dataclass
class Environment:
    """A virtual environment, and an empty folder that its commands run in. Their HOME is `home`."""

    folder: Path
    constraints: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def elsewhere(self) -> Path:
        return self.folder / "elsewhere"

    @property
    def purelib(self) -> Path:
        return next(self.folder.glob("lib/python*/site-packages"))

    def make(self) -> None:
        """Make it, with files in the current folder and in PYTHONPATH that would end whoever imports them."""
        subprocess.run([sys.executable, "-m", "venv", self.folder], check=True)
        for folder in (self.home, self.elsewhere, self.folder / "path"):
            folder.mkdir()
        for folder in (self.elsewhere, self.folder / "path"):
            for name in NAMES:
                (folder / f"{name}.py").write_text(f"raise SystemExit('{name} of somebody else')")

    def define(self, pipeline: str) -> None:
        """Write a definition into the current folder."""
        (self.elsewhere / f"{pipeline}.yaml").write_text(DEFINITION.replace("NAME", pipeline))

    def pip(self, command: str, *words: str | Path) -> None:
        """Run pip, with the locked versions."""
        pip = [self.python, "-m", "pip", "--disable-pip-version-check", command, "--quiet", "-c", self.constraints]
        done = subprocess.run([*pip, *words], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr

    def distributions(self) -> dict[str, list[str]]:
        """Return the top-level names that each distribution has brought, without those of a new environment."""
        script = (
            "import json; from importlib.metadata import distributions as found; "
            "print(json.dumps({each.name: sorted({file.parts[0] for file in each.files}) for each in found()}))"
        )
        done = subprocess.run([self.python, "-I", "-c", script], capture_output=True, text=True, check=True)
        names: dict[str, list[str]] = json.loads(done.stdout)
        return {name: files for name, files in names.items() if name not in ("pip", "setuptools")}

    def environ(self, **variables: str) -> dict[str, str]:
        return {
            "HOME": str(self.home),
            "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
            "PYTHONPATH": str(self.folder / "path"),
            "LAGLOSS_JARS_DIR": str(lagloss_jars.jars_dir()),
            "JAVA_TOOL_OPTIONS": os.environ["JAVA_TOOL_OPTIONS"],
            **variables,
        }

    def lagloss(self, *words: str, code: int = 0, **variables: str) -> str:
        """Return what a command prints, in either stream."""
        done = subprocess.run(
            [self.folder / "bin" / "lagloss", *words],
            cwd=self.elsewhere,
            env=self.environ(**variables),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == code, done.stdout
        return done.stdout

    @contextmanager
    def running(self, *words: str | Path, **variables: str) -> Iterator[Running]:
        """A program of this environment, ended as Ctrl-C does if it still runs."""
        log = self.folder / f"{uuid.uuid4().hex}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                list(map(str, words)),
                cwd=self.elsewhere,
                env=self.environ(**variables),
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield Running(process, log)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGINT)
                process.wait(120)


@dataclass
class Running:
    """A program that runs, and what it has printed."""

    process: subprocess.Popen[bytes]
    log: Path

    def output(self) -> str:
        return self.log.read_text()


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """Of this module; PostgreSQL's user can pass it."""
    made = new_folder()
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def wheels(folder: Path) -> list[Path]:
    """Both wheels: lagloss, lagloss-server."""
    for name in ("lagloss", "lagloss-server"):
        command = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", folder / "dist"]
        subprocess.run(command, cwd=ROOT / "packaging" / name, check=True, capture_output=True)
    return sorted((folder / "dist").iterdir())


@pytest.fixture(scope="module")
def constraints(folder: Path) -> Path:
    """The lock without its hashes: with them, pip would want one of each wheel that is built here, too."""
    return _pins(folder, "requirements.txt")


def _pins(folder: Path, lock: str) -> Path:
    path = folder / f"constraints-{lock}"
    pins = re.findall(r"^(\w[^\s=]*==[^\\\n]+)", (ROOT / lock).read_text(), re.MULTILINE)
    path.write_text("\n".join(pins))
    return path


@pytest.fixture(scope="module")
def sdk(folder: Path, wheels: list[Path], constraints: Path) -> Environment:
    """`pip install lagloss`, from what `pip download` has fetched into `downloads`."""
    environment = Environment(folder / "sdk", constraints)
    environment.make()
    environment.pip("download", "--dest", environment.folder / "downloads", wheels[0])
    environment.pip("install", "--no-index", "--find-links", environment.folder / "downloads", "lagloss")
    return environment


@pytest.fixture(scope="module")
def sdk_with_extras(sdk: Environment) -> Environment:
    """The same environment after `pip install 'lagloss[aiokafka,checksum,http,spark]'`."""
    sdk.pip(
        "install",
        f"lagloss[aiokafka,checksum,http,spark] @ {next((sdk.folder / 'downloads').glob('lagloss-*')).as_uri()}",
    )
    return sdk


@pytest.fixture(scope="module")
def server(folder: Path, wheels: list[Path], constraints: Path) -> Environment:
    """`pip install lagloss-server`, without Spark."""
    environment = Environment(folder / "server", constraints)
    environment.make()
    environment.pip("install", NO_COMPILE, *wheels)
    return environment


def test_the_sdk_is_a_small_download_and_brings_no_other_package(sdk: Environment) -> None:
    downloads = list((sdk.folder / "downloads").iterdir())
    assert sum(path.stat().st_size for path in downloads) < SDK_DOWNLOAD_BYTES
    brought = sdk.distributions()
    assert brought.keys() == {"lagloss", *SDK_NEEDS}
    assert [name for name in brought["lagloss"] if not name.endswith(".dist-info")] == ["lagloss"]
    assert not {"lagloss", "pipeline"} & {path.name for path in (sdk.folder / "bin").iterdir()}


SIGN = """
import base64, sys
from lagloss.broker.connection import KafkaConnection
token, ends = KafkaConnection("b-1.example:9098", {"sasl.mechanism": "AWS_MSK_IAM"}).client()["oauth_cb"]("")
print(base64.urlsafe_b64decode(token + "=="), ends)
"""


def test_the_extra_for_amazon_msk_signs_tokens_for_the_region(
    folder: Path, wheels: list[Path], constraints: Path
) -> None:
    free = folder / "without-dateutil.txt"  # Amazon's library wants an older one
    free.write_text("\n".join(pin for pin in constraints.read_text().split("\n") if "dateutil" not in pin))
    environment = Environment(folder / "msk", free)
    environment.make()
    environment.pip("install", NO_COMPILE, wheels[0])
    with environment.running(environment.python, "-c", SIGN) as script:
        assert script.process.wait(60) == 1
        assert "is AWS_MSK_IAM, which needs `pip install lagloss[msk]`" in script.output()
    environment.pip("install", NO_COMPILE, f"lagloss[msk] @ {wheels[0].as_uri()}")
    keys = {"AWS_ACCESS_KEY_ID": "AKIATEST", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "eu-west-3"}
    with environment.running(environment.python, "-c", SIGN, **keys) as script:
        assert script.process.wait(60) == 0, script.output()
        assert "https://kafka.eu-west-3.amazonaws.com/?Action=kafka-cluster%3AConnect" in script.output()
        assert "X-Amz-Credential=AKIATEST" in script.output()


def test_the_extra_for_checksums_computes_them(sdk_with_extras: Environment) -> None:
    script = "from lagloss.checksums import Checksums; print(Checksums().of('123456789')['payload_crc'])"
    done = subprocess.run([sdk_with_extras.python, "-I", "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) == 0xE3069283


def test_every_example_runs_with_the_sdk_alone(sdk_with_extras: Environment, kafka_bootstrap: str) -> None:
    sdk = sdk_with_extras
    sdk.pip("install", "fastapi", "uvicorn")
    assert not {name for name in sdk.distributions() if name.startswith("lagloss-")}
    examples = shutil.copytree(ROOT / "examples", sdk.folder / "examples", dirs_exist_ok=True)
    for example in EXPECTED:
        with sdk.running(sdk.python, examples / f"{example}.py", "--help") as script:
            assert script.process.wait(60) == 0, script.output()
    for example in RUN:
        pipeline = f"{example.replace('_', '-')}-{uuid.uuid4().hex[:8]}"
        words = (sdk.python, examples / f"{example}.py", "--pipeline", pipeline, "--messages", str(MESSAGES))
        with sdk.running(*words, LAGLOSS_KAFKA_BOOTSTRAP=kafka_bootstrap) as script:
            assert script.process.wait(120) == 0, script.output()
        assert dict(left_by(kafka_bootstrap, pipeline).counts) == EXPECTED[example]


def test_a_service_finds_its_losses_in_its_own_tests_with_the_sdk_and_pytest_alone(
    folder: Path, wheels: list[Path], constraints: Path
) -> None:
    tested = Environment(folder / "tested", constraints)
    tested.make()
    packages = (wheels[0], "pytest", "pytest-xdist", "fastapi", "httpx")
    tested.pip("install", NO_COMPILE, "-c", _pins(folder, "requirements-dev.txt"), *packages)
    examples = shutil.copytree(ROOT / "examples" / "pytest_service", tested.folder / "service")
    for words in ((), ("-n", "2")):
        with tested.running(tested.python, "-m", "pytest", "-q", "-p", "no:cacheprovider", *words, examples) as tests:
            assert tests.process.wait(120) == 0, tests.output()
            assert "2 passed" in tests.output()
    with tested.running(tested.python, "-m", "pytest", "--fixtures", examples) as listed:
        assert listed.process.wait(60) == 0
        assert "lagloss_pipeline" in listed.output()


def test_the_extra_for_aiokafka_brings_it(folder: Path, wheels: list[Path], constraints: Path) -> None:
    environment = Environment(folder / "aiokafka", constraints)
    environment.make()
    environment.pip("install", NO_COMPILE, wheels[0])
    script = "import lagloss.aiokafka"
    with environment.running(environment.python, "-c", script) as without:
        assert without.process.wait(60) == 1
        assert "run `pip install 'lagloss[aiokafka]'`" in without.output()
    environment.pip("install", NO_COMPILE, f"lagloss[aiokafka] @ {wheels[0].as_uri()}")
    with environment.running(environment.python, "-c", script) as imported:
        assert imported.process.wait(60) == 0, imported.output()


def test_without_spark_all_but_the_aggregator_runs(
    server: Environment, sdk_with_extras: Environment, kafka_bootstrap: str, database_url: str
) -> None:
    assert "pyspark" not in server.distributions()
    assert "Usage: lagloss" in server.lagloss("--help")
    for command in ("up", "demo", "aggregator"):
        assert "pip install 'lagloss-server[aggregator]'" in server.lagloss(command, code=3)
    repair = "repair", "orders", "--window", "2026-11-28T12:00Z", "--at", "node:shop"
    assert "numba is not installed" in server.lagloss(*repair, code=3)

    ports = {name: choose_port(name) for name in SERVICES}
    pipeline = f"orders-{uuid.uuid4().hex[:8]}"
    server.define(pipeline)
    variables = {
        "LAGLOSS_KAFKA_BOOTSTRAP": kafka_bootstrap,
        "LAGLOSS_DATABASE_URL": database_url,
        **{f"LAGLOSS_{name}_PORT".upper(): str(port) for name, port in ports.items()},
        **{f"LAGLOSS_{name}_URL".upper(): f"http://127.0.0.1:{port}" for name, port in ports.items()},
    }
    with server.running(server.python, "-I", "-m", "lagloss_server.ops.prepare", **variables) as prepare:
        assert prepare.process.wait(60) == 0, prepare.output()
    services = [server.running(server.python, "-I", "-m", name, **variables) for name in SERVICES]
    with services[0] as collector, services[1] as alerting, services[2] as dashboard:
        for service, port in zip((collector, alerting, dashboard), ports.values(), strict=True):
            wait_for(lambda at=port, of=service: _is_well(at) or of.process.poll() is not None, 60, "a service")
            assert service.process.poll() is None, service.output()
        assert "not needed" in server.lagloss("doctor", **variables)
        server.lagloss("apply", f"{pipeline}.yaml", **variables)
        url = {"LAGLOSS_COLLECTOR_URL": variables["LAGLOSS_COLLECTOR_URL"]}
        example = ROOT / "examples" / "http_service.py"
        with sdk_with_extras.running(sdk_with_extras.python, example, "--pipeline", pipeline, **url) as script:
            assert script.process.wait(60) == 0, script.output()
        assert left_by(kafka_bootstrap, pipeline).counts == {"shop.in": 100, "shop.out": 100}


@pytest.mark.parametrize("words", [("uvx", "--from"), ("pipx", "run", "--spec")], ids=["uvx", "pipx"])
def test_the_command_runs_by_the_file_of_the_wheel(
    folder: Path, wheels: list[Path], constraints: Path, words: tuple[str, ...]
) -> None:
    home = folder / words[0]
    home.mkdir()
    programs = Path(sys.executable).parent
    variables = {
        **{name: value for name, value in os.environ.items() if not name.startswith("LAGLOSS_")},
        "HOME": str(home),
        "PATH": f"{programs}:{os.environ['PATH']}",  # with uv on it, pipx leaves the packages to uv
        "UV_FIND_LINKS": str(wheels[0].parent),
        "UV_CONSTRAINT": str(constraints),
        "UV_CACHE_DIR": os.environ.get("UV_CACHE_DIR", str(Path.home() / ".cache" / "uv")),
    }
    found = ("--pip-args", f"--find-links {wheels[0].parent}") if words[0] == "pipx" else ()
    command = [programs / words[0], *words[1:], wheels[1], *found, "lagloss", "groups"]
    done = subprocess.run(command, cwd=home, env=variables, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 3, done.stderr
    assert "lagloss up" in done.stderr  # no service runs that this user could ask


def _is_well(port: int) -> bool:
    try:
        return httpx2.get(f"http://127.0.0.1:{port}/healthz").status_code == httpx2.codes.OK
    except httpx2.HTTPError:
        return False
