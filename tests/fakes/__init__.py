"""Stand-ins for services that cannot run here. Each follows its service's documented contract, limits and errors."""
