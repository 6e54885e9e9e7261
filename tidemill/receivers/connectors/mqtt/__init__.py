"""A receiver that subscribes to an MQTT broker."""
