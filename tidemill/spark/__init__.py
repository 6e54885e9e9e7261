"""The only folder that touches py4j or Catalyst, and what Tidemill's own tasks share on the executors."""
