"""Rating a node: how much traffic one process of it sustains within its lag target."""
