"""Servers that lagloss brings along, for a machine that has none."""
