"""What operators and newcomers read names what is there: metrics, settings, reasons, commands, targets, files."""

from __future__ import annotations

import ast
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import pytest
import typer.main
import yaml
from pydantic import BaseModel

from aggregator.metrics import AggregatorMetrics
from aggregator.results.metrics import RESULTS
from alerting.cli.main import app as alerts_app
from alerting.config import AlertingFile
from alerting.delivery.transports.kinds import KINDS as KINDS_OF_RECEIVERS
from alerting.metrics import AlertingMetrics
from canary.metrics import CanaryMetrics
from collector.metrics import CollectorMetrics
from dashboard.access.cli import app as access_app
from dashboard.access.policy import AccessFile, TeamSpec
from dashboard.mcp.cli import app as mcp_app
from dashboard.mcp.tools import TOOLS
from dashboard.reports.cli import app as report_app
from dashboard.reports.schedule.cli import app as reports_app
from dashboard.web.metrics import DashboardMetrics
from lagloss.broker.connection import ANY_PROPERTY, PREFIX, PROPERTIES
from lagloss.wire.format import BadReason
from lagloss_server.base.settings import ENV_PREFIX, Settings
from lagloss_server.base.yaml_files import parse_yaml
from lagloss_server.cli.main import app
from lagloss_server.incidents import receiver_check as rehearsal
from lagloss_server.incidents.runbooks import KINDS
from lagloss_server.model.alert_rules import Alerts
from lagloss_server.model.defaults import Defaults, DefaultsClass, DefaultsMetadata
from lagloss_server.model.definition import Definition, Metadata, PipelineSpec, parse_definition
from lagloss_server.model.definition_plan import ApplyPlan, PlannedPipeline
from lagloss_server.model.jobs import JobSpec
from lagloss_server.model.nodes import NodeSpec
from lagloss_server.net.schema_registry import FIELDS as REGISTRY_FIELDS
from lagloss_server.net.schema_registry import PREFIX as REGISTRY_PREFIX
from lagloss_server.store.audit import ACTIONS, Action
from lagloss_server.store.schema.audit import AuditTrailRow
from lagloss_server.store.schema.core import table_of
from taps.cli.main import app as tap_app
from taps.metrics import TapMetrics

ROOT = Path(__file__).resolve().parents[3]
RUNBOOKS = ROOT / "lagloss_server/incidents/runbooks"
FOLDERS = [path for path in ROOT.iterdir() if path.is_dir() and not path.name.startswith(".")]
PAGES = sorted([*ROOT.glob("*.md"), *(page for folder in FOLDERS for page in folder.rglob("*.md"))])
PACKAGES = (
    "lagloss",
    "lagloss_server",
    "collector",
    "aggregator",
    "alerting",
    "canary",
    "dashboard",
    "pipeline_under_test",
    "taps",
)
LINK = re.compile(r"!?\[([^\]]*)\]\(([^)\s]+)\)")


def page(path: str) -> str:
    return (ROOT / path).read_text("utf-8")


def table_rows(text: str) -> set[str]:
    """What stands as code in the first column of the page's tables."""
    return {
        name for cell in re.findall(r"^\| (`.*?) \|", text, re.MULTILINE) for name in re.findall(r"`([^`]+)`", cell)
    }


def exposed_metrics() -> set[str]:
    """The names as /metrics shows them."""
    services = (
        AggregatorMetrics(),
        CollectorMetrics(),
        AlertingMetrics(),
        CanaryMetrics(),
        TapMetrics(),
        DashboardMetrics(),
    )
    families = [family for service in services for family in service.registry.collect()]
    names = {family.name + ("_total" if family.type == "counter" else "") for family in families}
    return {name for name in names if name.startswith("lagloss_") and name != "lagloss_build"} - {
        metric.name for metric in RESULTS
    }


ANY = f"{PREFIX}{ANY_PROPERTY}"


def environment_variables() -> set[str]:
    """Every setting, and what else the code reads."""
    fields = {f"{ENV_PREFIX}{name}".upper() for name in Settings.model_fields}
    texts = [path.read_text("utf-8") for package in PACKAGES for path in (ROOT / package).rglob("*.py")]
    named = {name for text in texts for name in re.findall(r"LAGLOSS_[A-Z]+(?:_[A-Z]+)*\b", text)}
    kafka = {*PROPERTIES, *(f"TOPIC_{topic}" for topic in ("BEACONS", "REPORTS", "SAMPLING"))}
    registry = {f"{REGISTRY_PREFIX}{name}" for name in ("URL", *REGISTRY_FIELDS)}
    return (
        registry | {name for name in fields | named if not name.startswith(ANY)} | {f"{PREFIX}{name}" for name in kafka}
    )


DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
ASSIGNMENTS = (ast.Assign, ast.AnnAssign)


def defined_names(path: Path, *kinds: type[ast.AST]) -> set[str]:
    nodes = ast.walk(ast.parse(path.read_text("utf-8")))
    return {n.name for n in nodes if isinstance(n, DEFINITIONS) and isinstance(n, kinds or DEFINITIONS)}


def constants_of(path: Path) -> set[str]:
    """The names that a module gives to values."""
    nodes = ast.parse(path.read_text("utf-8")).body
    assigned = [n.targets if isinstance(n, ast.Assign) else [n.target] for n in nodes if isinstance(n, ASSIGNMENTS)]
    return {target.id for targets in assigned for target in targets if isinstance(target, ast.Name)}


def commands_of(group: Any, prefix: str = "") -> dict[str, Any]:
    """Every command, by its words: `alerts list`. Groups of commands are in it."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        apart = typer.main.get_command(APART[name]) if name in APART else command
        found[prefix + name] = apart
        if hasattr(apart, "commands"):
            found |= commands_of(apart, f"{prefix}{name} ")
    return found


APART = {
    "access": access_app,
    "alerts": alerts_app,
    "mcp": mcp_app,
    "report": report_app,
    "reports": reports_app,
    "tap": tap_app,
}
"""Commands that are command lines of their own: see `lagloss_server.cli.main`."""
PARSERS = commands_of(typer.main.get_command(app))
COMMANDS = {
    words: {option for parameter in command.params for option in parameter.opts} for words, command in PARSERS.items()
}
GROUPS = {name for name in COMMANDS for other in COMMANDS if other.startswith(f"{name} ")}


def command_in(words: str) -> str:
    """The command that these words begin with."""
    one, two = words.split()[:1], words.split()[:2]
    return " ".join(two if " ".join(two) in COMMANDS else one)


def code_in(text: str) -> list[str]:
    """What a page shows as code: fenced and indented blocks, and spans."""
    fenced = re.compile(r"^ *```.*?\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
    rest = fenced.sub("", text)
    return fenced.findall(text) + re.findall(r"^ {4}.+", rest, re.MULTILINE) + re.findall(r"`([^`\n]+)`", rest)


def example_definition() -> tuple[str, Definition]:
    text, _ = re.findall(r"^```yaml\n(.*?)^```$", page("docs/definition.md"), re.MULTILINE | re.DOTALL)
    return text, parse_definition(text, "definition.md")


def keys_of(model: type[BaseModel]) -> Iterator[str]:
    """The keys that YAML may have for this model, those of models in it by a path; the alerting rules are one key."""
    for name, field in model.model_fields.items():
        key, inner = field.alias or name, field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel) and inner is not Alerts:
            yield from (f"{key}.{below}" for below in keys_of(inner))
        else:
            yield key


def anchors(path: Path) -> set[str]:
    """The anchors that a page's headings get."""
    headings = re.findall(r"^#+ (.+)$", path.read_text("utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_operations_tells_every_metric_and_no_other() -> None:
    told = {name for name in table_rows(page("docs/operations.md")) if name.startswith("lagloss_")}
    assert told == exposed_metrics()


def test_operations_tells_every_setting_and_no_other() -> None:
    rows = table_rows(page("docs/operations.md")) | table_rows(page("docs/kafka.md"))
    documented = {name for name in rows if name.startswith(ENV_PREFIX) and not name.startswith(ANY)}
    assert documented == environment_variables()


def test_closing_tells_every_reason_for_a_bad_record_and_no_other() -> None:
    assert table_rows(page("docs/closing.md").split("## Bad records")[1]) == set(get_args(BadReason))


def test_the_command_line_page_has_every_command_and_no_other() -> None:
    rows = {row for row in table_rows(page("docs/command-line.md")) if row.startswith("lagloss ")}
    assert {command_in(row.removeprefix("lagloss ")) for row in rows} == COMMANDS.keys() - GROUPS


def promised_calls() -> Iterator[tuple[str, list[str]]]:
    """A command, and an option with a value, for each that the page about commands promises."""
    cells = re.findall(r"^\| (`lagloss .*?`) \| ", page("docs/command-line.md").replace("\\|", "/"), re.MULTILINE)
    for usage in (usage for cell in cells for usage in re.findall(r"`lagloss ([^`]+)`", cell)):
        command = command_in(usage)
        for option, value in [*re.findall(r"(--[a-z-]+)(?: ([^\s\]]+))?", usage), ("--data-dir", "DIR")]:
            if (command, option) != ("demo", "--data-dir"):
                for each in value.split("/"):
                    yield command, [option, *([each] if each else [])]


def choices_of(parameter: Any) -> tuple[str, ...]:
    annotation = parameter.type_descriptor.annotation
    return get_args(annotation) if get_origin(annotation) is Literal else ()


def example_of(parameter: Any) -> str:
    """A value that a parameter takes."""
    is_number = parameter.type_descriptor.annotation in (int, float)
    return [*choices_of(parameter), str(parameter.min or 1) if is_number else "a"][0]


@pytest.mark.parametrize("call", list(promised_calls()), ids=lambda call: f"{call[0]} {' '.join(call[1])}")
def test_every_command_takes_each_option_that_its_page_promises(call: tuple[str, list[str]]) -> None:
    words, (option, *values) = call
    command = PARSERS[words]
    (parameter,) = [parameter for parameter in command.params if option in parameter.opts]
    assert parameter.is_flag == (not values)
    given = [value if choices_of(parameter) and not value.isupper() else example_of(parameter) for value in values]
    required = [other for other in command.params if other.required and other is not parameter]
    rest = [
        word
        for other in required
        for word in ([] if other.param_type_name == "argument" else other.opts) + [example_of(other)]
    ]
    context = command.make_context(words, [*rest, option, *given])
    assert context.get_parameter_source(parameter.name).name == "COMMANDLINE"


def test_the_definition_page_shows_a_definition_of_defaults() -> None:
    text, shown = example_definition()
    given = yaml.safe_load(text)
    assert shown.name == "orders"
    assert shown == Definition.model_validate({**given, "spec": {"nodes": given["spec"]["nodes"]}})


def test_the_definition_page_has_every_key_with_its_default_and_no_other() -> None:
    _, keys, nodes, jobs, *_ = re.split(r"^## ", page("docs/definition.md"), flags=re.MULTILINE)
    assert table_rows(keys) == {f"metadata.{key}" for key in keys_of(Metadata)} | {
        f"spec.{key}" for key in keys_of(PipelineSpec)
    }
    assert table_rows(nodes) == set(keys_of(NodeSpec))
    assert table_rows(jobs) == set(keys_of(JobSpec))
    given = yaml.safe_load(example_definition()[0])
    for key, default in re.findall(r"^\| `(spec\.[\w.]+)` \| ([\d.]+\w*) \|", keys, re.MULTILINE):
        assert default == str(functools.reduce(lambda part, name: part[name], key.split("."), given)), key


def test_the_definition_page_shows_defaults_that_can_be_used_and_has_every_key_of_them() -> None:
    _, text = re.findall(r"^```yaml\n(.*?)^```$", page("docs/definition.md"), re.MULTILINE | re.DOTALL)
    assert len(parse_yaml(Defaults, text, "definition.md").spec) == 2
    (section,) = re.findall(r"^## Defaults\n(.*?)^## ", page("docs/definition.md"), re.MULTILINE | re.DOTALL)
    keys = {f"metadata.{key}" for key in DefaultsMetadata.model_fields}
    assert table_rows(section) == keys | {f"spec[].{key}" for key in DefaultsClass.model_fields}


def test_the_gitops_page_has_every_key_of_a_plan() -> None:
    rows = " ".join(re.findall(r"^\| (`.*?) \|", page("docs/gitops.md"), re.MULTILINE))
    keys = {*ApplyPlan.__struct_fields__, *PlannedPipeline.__struct_fields__}
    assert set(re.findall(r"\w+", rows)) == keys


def test_every_kind_of_incident_has_a_runbook_that_alerting_leads_to_and_no_other() -> None:
    told = page("docs/alerting.md")
    assert sorted(path.stem for path in RUNBOOKS.glob("*.md")) == sorted(KINDS)
    assert set(re.findall(r"\[`?([a-z-]+)`?\]\(\.\./lagloss_server/incidents/runbooks/\1\.md\)", told)) == set(KINDS)
    assert re.findall(r"^\| \[`([a-z-]+)`\]", told, re.MULTILINE) == list(KINDS)


def test_alerting_shows_a_body_with_the_keys_that_a_test_has() -> None:
    (text,) = re.findall(r"^```json\n(.*?)^```$", page("docs/alerting.md"), re.MULTILINE | re.DOTALL)
    shown, sent = json.loads(text), rehearsal.body("ann", 0)
    assert list(shown) == list(sent)
    for part in ("incident", "breach", "windows", "links", "commands"):
        assert list(shown[part]) == list(sent[part])


def test_alerting_shows_rules_and_an_alerting_file_that_can_be_used() -> None:
    rules, file = re.findall(r"^```yaml\n(.*?)^```$", page("docs/alerting.md"), re.MULTILINE | re.DOTALL)
    shown = Alerts.model_validate(yaml.safe_load(rules)["spec"]["alerts"])
    assert parse_yaml(AlertingFile, file, "alerting.md").receivers[0].name == "on-call"
    # what is shown of rules without a place of their own are the defaults, as the page says
    defaults = Alerts()
    for rule in Alerts.model_fields.keys() - {"runbook", "resolve_after", "upstream", "lag"}:
        assert getattr(shown, rule) == getattr(defaults, rule), rule
    assert (shown.lag[0], shown.resolve_after) == (defaults.lag[0], defaults.resolve_after)


def test_the_alerting_file_of_the_examples_shows_every_transport_and_can_be_used() -> None:
    text = page("examples/alerting.yaml")
    receivers = parse_yaml(AlertingFile, text, "examples/alerting.yaml").receivers
    assert [receiver.kind for receiver in receivers] == ["webhook"]
    switched_on = re.sub("^#(?! )|^#(?=  )", "", text, flags=re.MULTILINE)
    file = parse_yaml(AlertingFile, switched_on, "examples/alerting.yaml")
    assert sorted(receiver.kind for receiver in file.receivers) == sorted(KINDS_OF_RECEIVERS)
    assert file.fallback
    assert file.maintenance


def test_every_term_of_the_glossary_leads_to_a_page_and_to_a_class_that_exists() -> None:
    rows = [row.split(" | ") for row in re.findall(r"^\| (?!term)(\w.*) \|$", page("docs/glossary.md"), re.MULTILINE)]
    assert len(rows) > 50
    for term, _, to_page, to_class in rows:
        ((_, where),) = LINK.findall(to_page)
        ((name, module),) = LINK.findall(to_class)
        assert (ROOT / "docs" / where.partition("#")[0]).is_file(), term
        assert name.strip("`") in defined_names(ROOT / "docs" / module, ast.ClassDef), term


def test_the_map_of_the_tree_has_every_folder_and_no_other() -> None:
    top, *packages = page("CONTRIBUTING.md").split("## The tree")[1].split("## Recipes")[0].split("\nInside ")
    folders = {f"{folder.name}/" for folder in FOLDERS if folder.name not in ("build", "dist", "__pycache__")}
    assert {row for row in table_rows(top) if row.endswith("/")} == folders
    for package, inside in zip(("lagloss", "alerting", "lagloss_server"), packages, strict=True):
        found = {
            f"{path.name}/" if path.is_dir() else path.stem
            for path in (ROOT / package).iterdir()
            if not path.name.startswith("_") and (path.is_dir() or path.suffix == ".py")
        }
        assert set(re.findall(r"`(\w+/?)`", inside)) - {f"{package}/"} == found


def test_the_index_of_the_documentation_has_every_page() -> None:
    linked = {target.partition("#")[0] for _, target in LINK.findall(page("docs/README.md"))}
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= linked


def test_llms_txt_leads_to_every_page_and_to_files_that_are_there() -> None:
    targets = [target for _, target in LINK.findall(page("docs/llms.txt"))]
    assert [target for target in targets if not (ROOT / "docs" / target).is_file()] == []
    assert {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"} <= set(targets)
    assert re.match(r"# .+\n\n> .+\n\n", page("docs/llms.txt"))  # llmstxt.org


def test_the_page_about_agents_has_every_tool_with_its_arguments_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \|", page("docs/mcp.md").split("## Tools")[1], re.MULTILINE)
    arguments = {
        tool.name: {field.alias or name for name, field in tool.arguments.model_fields.items()} for tool in TOOLS
    }
    assert {name: set(re.findall(r"`(\w+)`", cell)) for name, cell in rows} == arguments


def test_the_index_of_decisions_has_every_one_in_order_with_its_title() -> None:
    pages = sorted((ROOT / "decisions").glob("[0-9]*.md"))
    titles = [re.match(r"# (\d+)\. (.+)\n", page.read_text("utf-8")) for page in pages]
    expected = [f"{title[1]}. [{title[2]}]({page.name})" for title, page in zip(titles, pages, strict=True) if title]
    assert re.findall(r"^\d+\. .+$", page("decisions/README.md"), re.MULTILINE) == expected
    assert [int(page.name[:4]) for page in pages] == list(range(1, len(pages) + 1))


def test_every_answer_to_a_company_names_the_test_that_ran_it_or_says_that_none_did() -> None:
    rows = [line for line in page("docs/company.md").splitlines() if line.startswith("| ")]
    answers = [row.strip("| ").split(" | ") for row in rows if not row.startswith("| what a company asks")]
    assert len(answers) > 40
    for asked, how, proof in answers:
        assert asked
        assert how
        linked = [text for text, target in LINK.findall(proof) if target.startswith("../tests/")]
        assert all(text.startswith("`test_") for text in linked)  # that it is there, the test of links says
        assert linked or "reviewed only" in proof, asked


@pytest.mark.parametrize("kind", KINDS)
def test_a_runbook_has_all_its_parts_in_their_order(kind: str) -> None:
    parts = re.findall(r"^## (.+)$", page(f"lagloss_server/incidents/runbooks/{kind}.md"), re.MULTILINE)
    assert parts == [
        "What it means", "Is it real?", "First steps", "Likely causes", "What to do", "Escalate",
        "Silence", "When it resolves",
    ]  # fmt: skip


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page_names_commands_and_options_that_exist(path: Path) -> None:
    for words in re.findall(r"^\s*lagloss ([a-z].*)", "\n".join(code_in(path.read_text("utf-8"))), re.MULTILINE):
        command = command_in(words)
        assert command in COMMANDS, words
        assert set(re.findall(r"--[a-z][a-z-]*", words)) <= COMMANDS[command] | {"--help"}, words


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_page_names_make_targets_that_exist(path: Path) -> None:
    targets = set(re.findall(r"^([a-z][a-z-]*):", page("Makefile"), re.MULTILINE))
    assert set(re.findall(r"(?:`|^)make ([a-z-]+)", path.read_text("utf-8"), re.MULTILINE)) <= targets


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_of_a_page_lead_somewhere(path: Path) -> None:
    for text, link in LINK.findall(path.read_text("utf-8")):
        if "://" in link:
            continue
        target, _, anchor = link.partition("#")
        found = (path.parent / target).resolve() if target else path
        assert found.exists(), link
        assert found.is_relative_to(ROOT), link
        if anchor:
            assert anchor in anchors(found), link
        if found.suffix == ".py" and re.fullmatch(r"`\w+`", text):
            assert text.strip("`") in defined_names(found) | constants_of(found), f"{text} in {link}"


def test_access_files_of_the_docs_and_the_examples_can_be_used_and_say_the_same_of_defaults() -> None:
    (shown,) = re.findall(r"^```yaml\n(.*?)^```$", page("docs/login.md"), re.MULTILINE | re.DOTALL)
    example = parse_yaml(AccessFile, page("examples/access.yaml"), "examples/access.yaml")
    assert parse_yaml(AccessFile, shown, "login.md") == example
    told = page("docs/login.md").split("## Teams")[1].split("## The audit trail")[0]
    defaults = {name: field.default for name, field in TeamSpec.model_fields.items()}
    assert dict(re.findall(r"^\| `(role|ids)` \| `(\w+)` \|", told, re.MULTILINE)) == {
        name: defaults[name] for name in ("role", "ids")
    }
    assert table_rows(told) == set(TeamSpec.model_fields)


def test_the_login_page_has_every_action_of_the_audit_trail_and_each_way_in_which_actors_are_known() -> None:
    trail = page("docs/login.md").split("## The audit trail")[1].split("## HTTPS")[0]
    actions, known = trail.split("| `known_by` |")
    assert table_rows(actions) == set(ACTIONS) == set(get_args(Action))
    comment = str(table_of(AuditTrailRow).c.known_by.comment)
    assert table_rows(f"| x |{known}") == set(comment.partition(": ")[2].split(", "))
