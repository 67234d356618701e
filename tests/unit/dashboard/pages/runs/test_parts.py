"""The parts of the page of runs, as plain HTML: what is read before a script has run."""

from __future__ import annotations

import html
import re

from dashboard.pages.printing import html_of
from dashboard.pages.runs.parts import job_part, run_part
from dashboard.request.links import Address
from lagloss_server.model.window import Interval
from lagloss_server.runs.dag_runs import stats_of, why_bad
from lagloss_server.runs.job_runs import HourRecords, HourRun, JobRuns
from tests.support.runs import JOB, NOON_S, failed_run

HERE = Address("/pipelines/clicks/runs", {"zone": "UTC"})
HOUR = HourRecords(60, 58, 12_000, 11_990, Interval(10, 12), 7, None, 0)
RUN = HourRun(failed_run(), HOUR, why_bad(JOB, failed_run()))


def text_of(drawn: str) -> str:
    return re.sub(r"\s+", " ", html.unescape(re.sub(r"<[^>]+>", " ", drawn)))


def test_a_run_says_what_failed_after_its_job_and_how_many_records_are_in_its_hour() -> None:
    text = text_of(html_of(run_part(RUN, HERE, NOON_S + 900, dark=False)))
    assert "publish and 1 more failed after 2 tries although spark succeeded" in text
    assert "in 12,000, out 11,990, lost 10–12, late 7, duplicated –, corrupted 0; 58 of 60 minutes closed." in text
    assert re.search(r"publish 2 ✖ failed .*12:09:00.* 1 min", text)
    assert re.search(r"notify – ✖ upstream failed", text)


def test_a_job_has_its_rates_its_tasks_and_a_link_to_each_run_and_its_hour() -> None:
    job = JobRuns(stats_of(JOB, [RUN.run], NOON_S + 3_000), (RUN,))
    drawn = html_of(job_part(job, HERE, dark=False))
    text = text_of(drawn)
    assert re.search(r"Succeeded 0 % of 1 completed run", text)
    assert re.search(r"Deadline met 0 of 1 hours within 20 min", text)
    assert "0 hours repaired, 1 not" in text
    assert 'href="/pipelines/clicks/runs?zone=UTC&amp;dag=scores&amp;run=r-1"' in drawn
    assert "/pipelines/clicks?zone=UTC&amp;from=2026-11-26T11:00:00Z&amp;to=2026-11-26T12:00:00Z" in drawn


def test_a_job_without_runs_says_so() -> None:
    assert "No runs are due in this range." in text_of(
        html_of(job_part(JobRuns(stats_of(JOB, [], 0), ()), HERE, False))
    )
