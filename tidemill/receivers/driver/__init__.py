"""On the driver: which receivers there are, where they run, and what they have stored."""
