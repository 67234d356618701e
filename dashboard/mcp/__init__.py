"""The Model Context Protocol: read-only tools for agents, on stdio and at `/mcp` of the dashboard. See docs/mcp.md."""
