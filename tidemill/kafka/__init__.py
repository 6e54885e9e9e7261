"""Kafka through ``confluent-kafka``: what the source, the sink and the streams of DStreams have in common."""

from tidemill.kafka.avro.decoder import from_confluent_avro

__all__ = ["from_confluent_avro"]
