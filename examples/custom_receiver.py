"""A custom receiver that produces its own records: the load of this machine, ten times a second."""

from __future__ import annotations

import os
import sys
import threading

import tidemill
from tidemill.receivers import Receiver
from tidemill.streaming import StreamingContext


class Load(Receiver):
    def onStart(self) -> None:
        self._stopped = threading.Event()
        threading.Thread(target=self._measure, daemon=True).start()

    def onStop(self) -> None:
        self._stopped.set()

    def _measure(self) -> None:
        while not self._stopped.wait(0.1):
            self.store(os.getloadavg()[0])


def main(seconds: float) -> None:
    spark = tidemill.session("load", master="local[2]", quiet=True)
    ssc = StreamingContext(spark.sparkContext, 1)
    loads = ssc.receiverStream(Load())
    loads.map(lambda load: (load, load, 1)).reduce(
        lambda a, b: (min(a[0], b[0]), max(a[1], b[1]), a[2] + b[2])
    ).map(lambda all_: f"{all_[2]} measurements, {all_[0]} to {all_[1]}").pprint()
    ssc.start()
    ssc.awaitTermination(seconds)
    ssc.stop(stopGraceFully=True)


if __name__ == "__main__":
    main(float(sys.argv[1]) if len(sys.argv) > 1 else 10)
