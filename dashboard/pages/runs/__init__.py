"""The page of the runs of jobs."""
