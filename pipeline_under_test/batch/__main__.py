"""`python -m pipeline_under_test.batch`: the same as `pipeline batch`."""

from pipeline_under_test.batch.cli import app
from pipeline_under_test.harness.commands import run_app

if __name__ == "__main__":
    run_app(app)
