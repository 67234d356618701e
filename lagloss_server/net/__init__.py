"""Safe outgoing connections: addresses checked, one deadline for all steps, secrets kept out of messages."""
