"""lagloss's own topics in Kafka, as SDK and services know them."""
