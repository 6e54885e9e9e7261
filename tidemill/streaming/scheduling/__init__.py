"""When a DStream batch is made, and how its jobs run."""
