"""Push input: receivers, which are user code that runs on executors and stores what it is sent.

A receiver is a long task on an executor. On the driver, the scheduling policy decides where each one
is to run, its tracking information says where it does, and the allocation manager asks the cluster for
more executors, or gives some back that run no receiver. What receivers store becomes blocks, and
blocks become a source like any other.
"""

from tidemill.receivers.receiver import Receiver

__all__ = ["Receiver"]
