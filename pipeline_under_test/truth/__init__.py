"""Ground truth, and how lagloss's results compare."""
