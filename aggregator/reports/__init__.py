"""Follow the reports topic."""
