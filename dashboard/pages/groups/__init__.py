"""The page of all consumer groups."""
