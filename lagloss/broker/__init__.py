"""The Kafka topics of lagloss itself."""
