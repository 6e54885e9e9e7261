"""The session and its context: settings, executors, jobs, failures, what is shipped to workers."""
