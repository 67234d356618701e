"""`lagloss tap`: commands to look at topics before they are tapped."""
