"""Encoding of numbers and results in few bytes, and the compiled loops over them."""
