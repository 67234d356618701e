"""The command `lagloss`."""
