"""What both reference pipelines are run and judged with: ledgers, faults, processes, and the verdict on lagloss."""
