"""The program of a stream on disk: pickled at its first start, recovered, upgraded.

- ``stream_start``: the order in which all of it happens at a start;
- ``graph_pickle``: writes the graph as bytes and reads it back; ``program_pickler`` is the pickler,
  ``unpicklable`` finds the variable that cannot be pickled;
- ``program_header``: the readable part of the file, operators and configuration;
- ``upgrade``: gives the operators of a new program the data of the old one;
- ``resume_point``: the time from which a recovered or upgraded stream goes on.
"""
