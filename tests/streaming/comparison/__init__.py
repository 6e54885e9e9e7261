"""Runs generated DStream programs on ``pyspark.streaming`` and on Tidemill, and compares every batch.

- :mod:`feeding` says what a program reads, batch by batch, and makes the files;
- :mod:`programs` says what a program is; :mod:`generating` puts them together, from the lists in
  :mod:`operations`;
- :mod:`engines` runs a program on either engine, on a clock that stands still between the batches;
- :mod:`comparing` lists the differences of two records;
- :mod:`pending` says which differences are known and not compared;
- :mod:`durable` runs a program with a checkpoint directory straight through, and with restarts, faults and
  kills: what it writes has to be the same;
- :mod:`calls` lists calls of every method, with good and wrong arguments, in every state of a context.
"""
