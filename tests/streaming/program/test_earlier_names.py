"""What is written in the programs of checkpoints is found, wherever it has moved since."""

from __future__ import annotations

import pytest

from tidemill.streaming.program.earlier_names import MOVED, unpickle_program

# Taken from checkpoints that earlier versions have written, with every input, operation and output. Not to be
# changed when something moves: say in MOVED where it is now.
IN_PROGRAMS = """
tidemill.batches.batch AdmissionLimit
tidemill.receivers.connectors.http.receiver HttpReceiver
tidemill.receivers.connectors.mqtt.receiver MqttReceiver
tidemill.receivers.connectors.mqtt.receiver MqttTls
tidemill.receivers.connectors.socket_receiver RawSocketReceiver
tidemill.receivers.connectors.socket_receiver SocketReceiver
tidemill.receivers.record_source ReceiverSourceFactory
tidemill.receivers.request_keys KeySettings
tidemill.sources.files.record_files_source DirectorySourceFactory
tidemill.sources.files.record_readers DirectorySourceFactory
tidemill.sources.queue QueueSourceFactory
tidemill.spark.rdds.combine combine_by_key
tidemill.spark.rdds.combine group_by_key
tidemill.spark.rdds.combine reduce_partitions
tidemill.spark.rdds.record_chain apply_step
tidemill.spark.session.creation_site CreationSite
tidemill.spark.session.failures is_file_already_there
tidemill.state.keys stable_hash
tidemill.streaming.graph.creation_site CreationSite
tidemill.streaming.graph.dstream_graph DStreamGraph
tidemill.streaming.graph.inputs InputNode
tidemill.streaming.graph.map_with_state MapWithState
tidemill.streaming.graph.outputs OutputNode
tidemill.streaming.graph.outputs TextOutputNode
tidemill.streaming.graph.outputs TextOutputNode._save
tidemill.streaming.graph.reduced_windows BlockNode
tidemill.streaming.graph.reduced_windows ReducedWindowNode
tidemill.streaming.graph.state StatefulNode
tidemill.streaming.graph.transformations TransformedNode
tidemill.streaming.graph.update_state UpdateState
tidemill.streaming.graph.windows WindowedNode
tidemill.streaming.util TransformFunction
tidemill.streaming.util rddToFileName
tidemill.tasks.combine_step Combiner
tidemill.tasks.record_steps CountRecords
tidemill.tasks.record_steps CountValues
tidemill.tasks.record_steps MapPartition
tidemill.tasks.record_steps MapRecords
tidemill.tasks.record_steps MapValues
"""
NAMES = [tuple(line.split()) for line in IN_PROGRAMS.strip().splitlines()]


@pytest.mark.parametrize(("module", "name"), NAMES)
def test_a_name_of_an_earlier_program_is_found(module: str, name: str) -> None:
    protocol = b"\x80\x04"  # dotted names need it
    texts = b"".join(b"\x8c" + bytes([len(text)]) + text.encode() for text in (module, name))
    assert callable(unpickle_program(protocol + texts + b"\x93."))


def test_what_has_moved_was_in_an_earlier_program() -> None:
    """A tool that renames a module everywhere must leave the names in MOVED alone."""
    assert set(MOVED) <= set(NAMES)
