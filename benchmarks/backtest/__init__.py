"""A backtest of the default rules on traffic whose faults are known: which incidents they open, and which rightly."""
