"""Safe outgoing connections: checked addresses, one deadline for all steps, redacted secrets."""
