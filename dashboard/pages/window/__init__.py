"""The page of a window: its verdict, loss table, matrix and differences."""
