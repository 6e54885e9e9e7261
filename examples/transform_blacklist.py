"""Drop the clicks of blacklisted users: ``transform`` joins each batch with a fixed RDD."""

from __future__ import annotations

from typing import Any

from pyspark import RDD

import tidemill
from tidemill.streaming import StreamingContext

CLICKS = [["1 tom", "2 ann"], ["3 ann", "4 tom", "5 kim"], ["6 tom"]]


def main() -> None:
    sc = tidemill.session("blacklist", master="local[2]", quiet=True).sparkContext
    ssc = StreamingContext(sc, 1)
    blacklist = sc.parallelize([("tom", True)])

    def without_blacklisted(rdd: RDD[Any]) -> RDD[Any]:
        joined = rdd.leftOuterJoin(blacklist)
        return joined.filter(lambda user: not user[1][1]).map(lambda user: user[1][0])

    clicks = ssc.queueStream(CLICKS).map(lambda line: (line.split()[1], line))
    clicks.transform(without_blacklisted).pprint()
    ssc.start()
    ssc.awaitTermination(len(CLICKS) + 0.5)
    ssc.stop(stopGraceFully=True)


if __name__ == "__main__":
    main()
