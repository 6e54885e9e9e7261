"""The checkpoint directory of a query: where it is, whether it fits the query, the plan written in it."""
