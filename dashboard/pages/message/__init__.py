"""The page of a message: its trail."""
