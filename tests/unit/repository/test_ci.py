"""The files for GitHub's and GitLab's CI: valid, with few rights, and the same run as anywhere else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[3]
GITHUB = ROOT / ".github" / "workflows" / "ci.yml"
NIGHTLY = GITHUB.with_name("histories.yml")
GITLAB = ROOT / ".gitlab-ci.yml"
WORKFLOW = yaml.safe_load(GITHUB.read_text())
HISTORIES = yaml.safe_load(NIGHTLY.read_text())
PIPELINE = yaml.safe_load(GITLAB.read_text())


@pytest.mark.parametrize(
    ("schema", "path"), [("github-workflows", GITHUB), ("github-workflows", NIGHTLY), ("gitlab-ci", GITLAB)]
)
def test_a_ci_file_follows_its_published_schema(schema: str, path: Path) -> None:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


def test_both_run_the_same_script_in_the_same_image_for_as_long() -> None:
    (job,) = WORKFLOW["jobs"].values()
    assert [step["run"].split()[-2:] for step in job["steps"] if "run" in step] == [["bash", ".ci/run"]]
    assert PIPELINE["ci"]["script"] == ["bash .ci/run"]
    assert PIPELINE["ci"]["image"] == job["container"]["image"]
    assert PIPELINE["ci"]["timeout"] == f"{job['timeout-minutes']} minutes"
    paths = next(step["with"]["path"].split() for step in job["steps"] if "cache" in step.get("uses", ""))
    assert PIPELINE["ci"]["cache"]["paths"] == paths


def test_both_run_the_same_histories_at_night() -> None:
    (job,) = HISTORIES["jobs"].values()
    commands = [step["run"] for step in job["steps"] if "run" in step]
    assert commands == [
        "bash .ci/histories --folder histories --runs 20",
        "bash .ci/histories --folder histories --minutes 240 --every 300 --runs 48",
    ]
    (script,) = PIPELINE["histories"]["script"]
    assert all(command in script for command in commands)
    assert PIPELINE["histories"]["image"] == job["container"]["image"]
    assert PIPELINE["histories"]["timeout"] == f"{job['timeout-minutes']} minutes"
    hours = {event["cron"] for event in HISTORIES[True]["schedule"]}
    assert {
        step["if"].rpartition("= ")[2].strip("'") for step in job["steps"] if "run" in step and "if" in step
    } < hours


@pytest.mark.parametrize("workflow", [WORKFLOW, HISTORIES])
def test_a_workflow_may_read_the_repository_and_nothing_else(workflow: dict[Any, Any]) -> None:
    assert workflow["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in workflow["jobs"].values())
    assert "pull_request_target" not in workflow[True]  # YAML 1.1 reads `on` so; it would give forks the secrets
    for path in (GITHUB, NIGHTLY, GITLAB):
        assert not re.search(r"secrets\.|id_tokens|id-token", path.read_text()), path


@pytest.mark.parametrize("path", [GITHUB, NIGHTLY])
def test_actions_are_pinned_by_commit_and_none_keeps_the_token(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    actions = [step for job in workflow["jobs"].values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"actions/[a-z-]+@[0-9a-f]{40}", step["uses"]) for step in actions)
    with_versions = re.findall(r"uses: \S+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", path.read_text(), re.MULTILINE)
    assert len(with_versions) == len(actions)
    (checkout,) = (step for step in actions if step["uses"].startswith("actions/checkout@"))
    assert checkout["with"] == {"persist-credentials": False}


def test_a_cache_that_is_kept_is_one_that_git_ignores() -> None:
    ignored = (ROOT / ".gitignore").read_text().split()
    assert all(f"{path.split('/')[0]}/" in ignored for path in PIPELINE["ci"]["cache"]["paths"])
