"""A receiver to which clients post records over HTTP."""
