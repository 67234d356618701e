"""How numbers and results are packed into few bytes, and the loops over them that are compiled."""
