"""What all clients of a Kafka cluster share: settings, errors, waiting for brokers, keeping them open."""
