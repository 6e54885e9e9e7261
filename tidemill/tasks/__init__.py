"""What runs inside Python workers: reading splits and files, record loops, steps with state."""
