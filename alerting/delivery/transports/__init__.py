"""Ways to reach somebody: one module each."""
