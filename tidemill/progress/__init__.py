"""What is known about a running stream: batch information, the events that carry it, the listener bus."""
