"""When a DStream batch is made, and how its jobs run.

::

    stream_run.py         a started program: puts the following together
    job_generator.py      the timer: plan a batch at every batch time
    job_scheduler.py      the threads that take planned batches through the runner, in order
    dstream_pipeline.py   what runs on a batch: the graph makes jobs, jobs run
    job_threads.py        the threads that run jobs, as many as concurrentJobs says
    job.py                the jobs of a batch, and how far they have come
    stream_errors.py      what is said of an error, and to whom
    receiver_streams.py   the receivers of the graph's inputs
"""
