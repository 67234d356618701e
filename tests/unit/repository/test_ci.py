"""The files for GitHub's and GitLab's CI: valid, with few rights, and the same run as anywhere else."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[3]
GITHUB = ROOT / ".github" / "workflows" / "ci.yml"
GITLAB = ROOT / ".gitlab-ci.yml"
WORKFLOW = yaml.safe_load(GITHUB.read_text())
PIPELINE = yaml.safe_load(GITLAB.read_text())


@pytest.mark.parametrize(("schema", "path"), [("github-workflows", GITHUB), ("gitlab-ci", GITLAB)])
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


def test_the_workflow_may_read_the_repository_and_nothing_else() -> None:
    assert WORKFLOW["permissions"] == {"contents": "read"}
    assert all("permissions" not in job for job in WORKFLOW["jobs"].values())
    assert "pull_request_target" not in WORKFLOW[True]  # YAML 1.1 reads `on` so; it would give forks the secrets
    for path in (GITHUB, GITLAB):
        assert not re.search(r"secrets\.|id_tokens|id-token", path.read_text()), path


def test_actions_are_pinned_by_commit_and_none_keeps_the_token() -> None:
    actions = [step for job in WORKFLOW["jobs"].values() for step in job["steps"] if "uses" in step]
    assert all(re.fullmatch(r"actions/\w+@[0-9a-f]{40}", step["uses"]) for step in actions)
    with_versions = re.findall(r"uses: \S+@[0-9a-f]{40} # v\d+\.\d+\.\d+$", GITHUB.read_text(), re.MULTILINE)
    assert len(with_versions) == len(actions)
    (checkout,) = (step for step in actions if step["uses"].startswith("actions/checkout@"))
    assert checkout["with"] == {"persist-credentials": False}


def test_a_cache_that_is_kept_is_one_that_git_ignores() -> None:
    ignored = (ROOT / ".gitignore").read_text().split()
    assert all(f"{path.split('/')[0]}/" in ignored for path in PIPELINE["ci"]["cache"]["paths"])
