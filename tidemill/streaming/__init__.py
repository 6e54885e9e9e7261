"""DStreams: the API of ``pyspark.streaming`` on Tidemill's engine.

>>> from tidemill.streaming import StreamingContext
"""

from tidemill.streaming.context import StreamingContext
from tidemill.streaming.dstream import DStream
from tidemill.streaming.listener import StreamingListener
from tidemill.streaming.state_spec import State, StateSpec

__all__ = ["DStream", "State", "StateSpec", "StreamingContext", "StreamingListener"]
