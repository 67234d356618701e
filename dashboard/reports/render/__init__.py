"""Reports in their formats: Markdown, HTML, PDF, CSV, JSON."""
