"""The page of the portfolio."""
