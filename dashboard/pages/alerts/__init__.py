"""The alerts page: its tabs, and trials of rules and receivers."""
