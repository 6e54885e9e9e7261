"""A receiver that is a member of a consumer group of Kafka."""
