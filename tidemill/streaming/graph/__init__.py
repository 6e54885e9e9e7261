"""The graph of a DStream program: one node for each stream, which makes the RDDs of its batches.

Nodes know their parents and their :class:`GraphBase`, and nothing of contexts and ``DStream``.

- ``node``: the base of all nodes; ``inputs``, ``transformations``, ``windows`` and ``reduced_windows``,
  ``outputs``: the kinds of nodes;
- ``state``: the node that keeps state, with ``update_state`` and ``map_with_state``, the two functions it
  runs, and ``state_tasks``, its work on the executors;
- ``dstream_graph``: all nodes of a program, batch after batch;
- ``creation_site``: the line of the user's program that made a node.
"""
