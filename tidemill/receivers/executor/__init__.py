"""On an executor, in the worker that runs the user's receiver: everything around that receiver."""
