"""DStreams: the API of ``pyspark.streaming`` on Tidemill's engine.

>>> from tidemill.streaming import StreamingContext

The modules beside this one are what a program sees: ``context`` (on ``lifecycle`` and ``inputs``),
``dstream`` (with ``pair_operations`` and ``window_operations``, on ``stream_handle``), ``state_spec``,
``listener``, ``util``, ``kafka`` and ``kinesis``. Behind them are three rooms:

- ``graph``: the nodes of a program, one for each stream, which make the RDDs of its batches;
- ``scheduling``: the job generator and the job scheduler, which decide when a batch is made and run;
- ``program``: the program on disk, how a stream starts, recovers and is upgraded.
"""

from tidemill.streaming.context import StreamingContext
from tidemill.streaming.dstream import DStream
from tidemill.streaming.listener import StreamingListener
from tidemill.streaming.state_spec import State, StateSpec

__all__ = ["DStream", "State", "StateSpec", "StreamingContext", "StreamingListener"]
