"""On an executor: what runs beside the user's receiver."""
