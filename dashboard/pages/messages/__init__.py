"""The page of the newest messages that something is wrong with."""
