"""The tables; each has one writer, named in its comment."""
