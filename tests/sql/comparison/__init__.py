"""Runs generated queries on Spark's streaming engine and on Tidemill, and compares all that a user sees.

- :mod:`inputs` makes rows and the files that both engines read, batch by batch;
- :mod:`queries` says what a query and its run are; :mod:`generating` puts them together, from the lists in
  :mod:`expressions` and :mod:`functions`;
- :mod:`engines` runs a query on either engine and records what came of it;
- :mod:`comparing` lists the differences of two records;
- :mod:`pending` says which differences are known and not compared yet;
- :mod:`refusals` lists programs that an engine refuses, or that fail when they run;
  :mod:`refusing` tries them.
"""
