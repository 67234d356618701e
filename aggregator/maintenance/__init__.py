"""Tasks beside closing: retention, roll-ups, recompute requests, sampling."""
