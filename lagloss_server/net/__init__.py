"""Ways out that are safe: addresses looked at, one time limit for all steps, no secret told."""
