"""A backtest of the default rules on traffic whose faults are known: how many incidents they open, and how many rightly."""
