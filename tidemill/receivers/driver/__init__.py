"""On the driver: where receivers run, and which blocks they have stored."""
