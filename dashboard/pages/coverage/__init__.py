"""The page of coverage."""
