"""What truly happened, and how lagloss's results compare."""
