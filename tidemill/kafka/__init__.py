"""Kafka through ``confluent-kafka``: what the source, the sink and the streams of DStreams have in common."""
