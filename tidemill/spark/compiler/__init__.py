"""From the DataFrame of a query to a physical plan that runs on every batch."""
