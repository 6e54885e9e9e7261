"""Messages in Avro, as Confluent's serializers write them."""

from tidemill.kafka.avro.decoder import from_confluent_avro

__all__ = ["from_confluent_avro"]
