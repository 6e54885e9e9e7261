"""Every setting on docs/settings.md has a test of what it changes. The table says which one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

STREAM = "streaming/test_stream_settings.py"
QUERY = "sql/execution/test_query_settings.py"
RECEIVERS = "streaming/scheduling/test_receivers.py"
DIRECT = "sources/kafka/direct"
ESTIMATOR = "batches/test_rate_estimator.py", "test_the_settings_are_those_of_spark"
CONTROLLERS = (
    "batches/test_rate_controller.py",
    "test_controllers_are_made_from_settings_and_only_when_wanted",
)
ALLOCATION = (
    "receivers/driver/test_executor_allocation.py",
    "test_settings_are_read_by_sparks_names",
)
FILE_LOG = "sources/files/test_spark_file_log.py", "test_settings_have_spark_s_names"
SINK_LOG = "sinks/files/test_file_sink.py", "test_the_manifest_is_compacted_and_cleaned"
SESSION = (
    "spark/session/test_session.py",
    "test_a_new_session_is_tuned_quiet_and_runs_workers_in_this_python",
)
TIMES = STREAM, "test_a_block_is_cut_and_a_receiver_restarted_as_often_as_they_are_told"

TESTS = {
    "spark.streaming.concurrentJobs": (
        "streaming/scheduling/test_scheduling.py",
        "test_concurrent_jobs_run_at_once",
    ),
    "spark.streaming.unpersist": (
        STREAM,
        "test_windows_with_an_inverse_are_unpersisted_only_if_wanted",
    ),
    "spark.streaming.stopGracefullyOnShutdown": (
        "streaming/test_shutdown.py",
        "test_sigterm_without_grace_stops_at_once",
    ),
    "spark.streaming.gracefulStopTimeout": (
        "streaming/test_context.py",
        "test_a_graceful_stop_gives_up_after_its_timeout",
    ),
    "spark.streaming.fileStream.minRememberDuration": (STREAM, "test_older_files_are_ignored"),
    "spark.files.ignoreMissingFiles": (
        "streaming/test_file_streams.py",
        "test_a_file_that_vanishes_is_reported_and_not_fatal_if_the_user_has_asked",
    ),
    "spark.files.ignoreCorruptFiles": (
        "streaming/test_file_streams.py",
        "test_damaged_compressed_files_are_reported_and_not_fatal_if_the_user_has_asked",
    ),
    "spark.streaming.backpressure.enabled": CONTROLLERS,
    "spark.streaming.backpressure.initialRate": CONTROLLERS,
    "spark.streaming.receiver.maxRate": (RECEIVERS, "test_a_receiver_keeps_to_its_maximum_rate"),
    "spark.streaming.backpressure.rateEstimator": ESTIMATOR,
    "spark.streaming.backpressure.pid.proportional": ESTIMATOR,
    "spark.streaming.backpressure.pid.integral": ESTIMATOR,
    "spark.streaming.backpressure.pid.derived": ESTIMATOR,
    "spark.streaming.backpressure.pid.minRate": ESTIMATOR,
    "spark.sql.streaming.checkpointLocation": (
        "sql/test_manager.py",
        "test_the_session_has_a_directory_for_all_checkpoints",
    ),
    "spark.sql.streaming.stopActiveRunOnRestart": (
        "sql/test_manager.py",
        "test_a_checkpoint_has_one_query_at_a_time",
    ),
    "spark.sql.streaming.forceDeleteTempCheckpointLocation": (
        "sql/test_manager.py",
        "test_a_temporary_checkpoint_is_deleted_unless_the_query_failed",
    ),
    "spark.sql.shuffle.partitions": (QUERY, "test_state_has_so_many_partitions"),
    "spark.sql.legacy.pathOptionBehavior.enabled": (
        QUERY,
        "test_the_path_of_start_wins_over_the_option_only_if_it_may",
    ),
    "spark.sql.streaming.queryEvolution.enableSourceEvolution": (
        QUERY,
        "test_every_source_needs_a_name_if_sources_may_change",
    ),
    "spark.sql.streaming.queryEvolution.enableSinkEvolution": (
        QUERY,
        "test_a_sink_needs_a_name_if_sinks_may_change",
    ),
    "spark.sql.streaming.noDataMicroBatches.enabled": (
        "sql/execution/test_execution.py",
        "test_without_batches_without_data_windows_wait_for_the_next_rows",
    ),
    "spark.sql.streaming.multipleWatermarkPolicy": (
        "sql/execution/test_watermarks.py",
        "test_every_batch_gives_what_spark_gives",
    ),
    "spark.sql.streaming.numRecentProgressUpdates": (QUERY, "test_so_many_progress_reports_stay"),
    "spark.sql.streaming.noDataProgressEventInterval": (
        QUERY,
        "test_an_idle_query_says_so_as_often_as_it_is_told",
    ),
    "spark.sql.streaming.fileSink.log.compactInterval": SINK_LOG,
    "spark.sql.streaming.fileSink.log.deletion": (
        QUERY,
        "test_lists_of_a_file_sink_stay_if_wanted",
    ),
    "spark.sql.streaming.fileSink.log.cleanupDelay": (
        QUERY,
        "test_lists_of_a_file_sink_stay_if_wanted",
    ),
    "spark.sql.streaming.fileSource.log.compactInterval": FILE_LOG,
    "spark.sql.streaming.fileSource.log.deletion": FILE_LOG,
    "spark.sql.streaming.fileSource.log.cleanupDelay": FILE_LOG,
    "spark.sql.streaming.minBatchesToRetain": (
        QUERY,
        "test_offsets_commits_and_state_of_so_many_batches_stay",
    ),
    "spark.streaming.blockInterval": TIMES,
    "spark.streaming.receiverRestartDelay": TIMES,
    "spark.streaming.blockQueueSize": (
        RECEIVERS,
        "test_a_flood_before_a_stalled_job_is_held_back_and_nothing_is_lost",
    ),
    "spark.streaming.receiver.blockStoreTimeout": (
        STREAM,
        "test_a_log_that_hangs_is_given_up_after_the_timeout",
    ),
    "spark.streaming.receiver.writeAheadLog.enable": (
        QUERY,
        "test_receivers_of_a_query_follow_the_settings_of_its_session",
    ),
    "spark.streaming.receiver.writeAheadLog.rollingIntervalSecs": (
        STREAM,
        "test_the_log_begins_a_new_file_when_it_is_told",
    ),
    "spark.streaming.receiver.writeAheadLog.maxFailures": (
        STREAM,
        "test_a_log_that_hangs_is_given_up_after_the_timeout",
    ),
    "spark.scheduler.maxRegisteredResourcesWaitingTime": (
        "streaming/scheduling/test_receiver_streams.py",
        "test_the_start_waits_for_executors_that_are_on_their_way",
    ),
    "spark.tidemill.receiver.memory": (
        STREAM,
        "test_blocks_stay_in_as_much_memory_as_they_may",
    ),
    "spark.tidemill.receiver.stopTimeout": (
        "streaming/scheduling/test_receiver_streams.py",
        "test_supervisors_give_up_on_a_stop_after_the_time_that_was_set",
    ),
    "spark.tidemill.receiver.maxFailedStarts": (
        RECEIVERS,
        "test_a_receiver_whose_port_is_taken_says_so_and_ends_as_failed",
    ),
    "spark.tidemill.receiver.maxHeld": (
        RECEIVERS,
        "test_what_a_window_keeps_does_not_hold_the_receiver_back",
    ),
    "spark.scheduler.listenerbus.eventqueue.capacity": (
        STREAM,
        "test_so_many_events_wait_for_a_slow_listener",
    ),
    "spark.streaming.kafka.maxRatePerPartition": (
        f"{DIRECT}/test_direct_stream.py",
        "test_rates_of_partitions",
    ),
    "spark.streaming.kafka.minRatePerPartition": (
        f"{DIRECT}/test_direct_stream.py",
        "test_backpressure_is_shared_by_lag_between_the_rates_of_partitions",
    ),
    "spark.streaming.kafka.consumer.poll.ms": (
        f"{DIRECT}/test_bad_days.py",
        "test_a_broker_that_stays_away_fails_the_batch_after_the_time_that_was_set",
    ),
    "spark.streaming.dynamicAllocation.enabled": ALLOCATION,
    "spark.streaming.dynamicAllocation.minExecutors": ALLOCATION,
    "spark.streaming.dynamicAllocation.maxExecutors": ALLOCATION,
    "spark.streaming.dynamicAllocation.scalingInterval": ALLOCATION,
    "spark.streaming.dynamicAllocation.scalingUpRatio": ALLOCATION,
    "spark.streaming.dynamicAllocation.scalingDownRatio": ALLOCATION,
    "spark.python.unix.domain.socket.enabled": SESSION,
    "PYSPARK_PYTHON": SESSION,
}


def keys_on_the_page() -> list[str]:
    """The keys in the first columns of the page's tables. ``...deletion`` stands in a row of its kind."""
    found: list[str] = []
    for line in (ROOT / "docs" / "settings.md").read_text().splitlines():
        if line.startswith("| `"):
            keys = re.findall(r"`([^`]+)`", line.split("|")[1])
            log = keys[0].rpartition(".")[0]
            found += [key.replace("..", f"{log}", 1) if key[0] == "." else key for key in keys]
    return found


def test_every_setting_on_the_page_has_a_test() -> None:
    keys = keys_on_the_page()
    assert len(keys) > 40
    assert sorted(keys) == sorted(TESTS)


@pytest.mark.parametrize("key", TESTS)
def test_the_test_of_a_setting_is_there_and_uses_it(key: str) -> None:
    file, name = TESTS[key]
    text = (ROOT / "tests" / file).read_text()
    assert f"\ndef {name}(" in text
    assert key.rpartition(".")[2] in text
