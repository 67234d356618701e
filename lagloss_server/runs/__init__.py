"""Runs of jobs and of DAGs: what they report, where it is stored, and whether the hour that they process is whole."""
