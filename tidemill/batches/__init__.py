"""The core: what happens to a batch, whichever front end it belongs to.

DStreams and structured queries differ in what they run on a batch, not in how a batch is planned, logged,
limited, committed or recovered. That part is here, once::

    batch.py              what a batch is
    source.py             the interfaces: what has offsets,
    table_source.py         what a query reads,
    pipeline.py             what runs on a batch,
    sink.py                 where its rows go
    planner.py            which ranges the next batch reads, under which limits
    parallelism.py          in how many tasks
    rate_controller.py      at which rate, learned from the batches before (rate_estimator.py, rate_feed.py)
    runner.py             the seven steps of a batch: start reading here
    recovery.py           where a stream stands when it starts
    durable.py            the checkpoint directory of a running stream
    running_state.py      its state, and the snapshots of it (state_maintenance.py)
"""
