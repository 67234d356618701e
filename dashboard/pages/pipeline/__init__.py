"""The page of a pipeline: its panels over a range."""
