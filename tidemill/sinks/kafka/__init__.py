"""Writing to Kafka: at least once, or each batch once, in a transaction."""
