"""Planning a batch: which range of which source it reads, under which limit, in how many tasks.

DStreams and structured queries differ in what they run on a batch, not in how it is planned.
"""
