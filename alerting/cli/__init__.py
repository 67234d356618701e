"""The command `lagloss alerts`."""
