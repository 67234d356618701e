"""Close windows: when they are due, from what evidence, with what result."""
