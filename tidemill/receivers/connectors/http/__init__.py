"""A receiver that others post to over HTTP."""
