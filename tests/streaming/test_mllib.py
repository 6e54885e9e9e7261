"""The streaming algorithms of ``pyspark.mllib`` on our streams: they learn and predict as on Spark's."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
from pyspark import RDD, SparkContext
from pyspark.mllib.classification import StreamingLogisticRegressionWithSGD
from pyspark.mllib.clustering import StreamingKMeans
from pyspark.mllib.linalg import Vectors
from pyspark.mllib.regression import LabeledPoint, StreamingLinearRegressionWithSGD

from tests.streaming.comparison.engines import run_on_both
from tests.streaming.comparison.programs import Keep
from tests.streaming.program.restarts import Runs
from tidemill.streaming import StreamingContext

BATCHES = 2


def kmeans() -> Any:
    return StreamingKMeans(k=2, decayFactor=0.9).setInitialCenters([[0.0], [1.0]], [1.0, 1.0])


def linear() -> Any:
    algorithm = StreamingLinearRegressionWithSGD(stepSize=0.2, numIterations=1)
    algorithm.setInitialWeights([0.0])
    return algorithm


def logistic() -> Any:
    algorithm = StreamingLogisticRegressionWithSGD(stepSize=0.5, numIterations=1)
    algorithm.setInitialWeights([0.0])
    return algorithm


def examples(label: Callable[[float], float] | None) -> list[list[Any]]:
    """Return batches of points, with labels if ``label`` makes them."""
    random = Random(7)
    batches = [[random.uniform(-3, 5) for _ in range(8)] for _ in range(BATCHES)]
    return [
        [Vectors.dense([x]) if label is None else LabeledPoint(label(x), [x]) for x in batch]
        for batch in batches
    ]


ALGORITHMS = {
    "k-means": (kmeans, examples(None)),
    "linear regression": (linear, examples(lambda x: 3 * x)),
    "logistic regression": (logistic, examples(lambda x: float(x > 1))),
}


def numbers(algorithm: Any) -> list[float]:
    """Return what the algorithm has learned."""
    model = algorithm.latestModel()
    if isinstance(algorithm, StreamingKMeans):
        return [*model.clusterCenters[0], *model.clusterCenters[1], *model.clusterWeights]
    return [*model.weights, model.intercept]


@pytest.mark.parametrize("name", ALGORITHMS)
def test_learns_and_predicts_as_on_spark(name: str, sc: SparkContext) -> None:
    make, batches = ALGORITHMS[name]
    learned: list[list[list[float]]] = []

    def build(ssc: Any, keep: Keep) -> None:
        algorithm = make()
        history: list[list[float]] = []
        learned.append(history)
        points = ssc.queueStream([[Vectors.dense([x]) for x in (-2.0, 0.4, 4.0)]] * BATCHES)
        # Defined before trainOn, they see on both engines what the batches before have taught.
        keep("predictions", algorithm.predictOn(points))
        keep("by value", algorithm.predictOnValues(points.map(lambda point: (str(point), point))))
        algorithm.trainOn(ssc.queueStream([sc.parallelize(each, 1) for each in batches]))
        points.foreachRDD(lambda rdd: history.append(numbers(algorithm)))

    theirs, ours = run_on_both(sc, BATCHES, build)
    for output in ("predictions", "by value"):
        assert ours[output].keys() == theirs[output].keys()
    for time_s, predicted in ours["predictions"].items():
        assert np.allclose(predicted, theirs["predictions"][time_s])
        pairs, their_pairs = ours["by value"][time_s], theirs["by value"][time_s]
        assert [key for key, _ in pairs] == [key for key, _ in their_pairs]
        assert np.allclose([value for _, value in pairs], [value for _, value in their_pairs])
    assert len(ours["predictions"][BATCHES]) == 3
    assert learned[0][-1] != learned[0][0]
    assert np.allclose(learned[1], learned[0])


@pytest.mark.parametrize("name", ALGORITHMS)
def test_refuses_what_is_no_stream(name: str) -> None:
    with pytest.raises(TypeError, match="DStream"):
        ALGORITHMS[name][0]().trainOn([1])


@pytest.mark.parametrize("name", ["k-means", "linear regression"])
def test_what_was_learned_survives_a_restart(name: str, sc: SparkContext, runs: Runs) -> None:
    """Spark pickles the functions of a program at every batch, and the algorithm with them."""
    make, batches = ALGORITHMS[name]
    results = str(runs.results)

    def build(ssc: StreamingContext) -> None:
        algorithm = make()
        stream = ssc.queueStream(batches)
        algorithm.trainOn(stream)

        def write(time: datetime, rdd: RDD[Any]) -> None:
            path = Path(results) / f"learned-{round(time.timestamp())}"
            path.write_text(json.dumps([float(each) for each in numbers(algorithm)]))

        stream.foreachRDD(write)

    runs.run(build, BATCHES)
    straight = list(runs.written().values())
    shutil.rmtree(runs.checkpoint)
    for number in range(BATCHES):
        runs.run(build, 1, clock_ms=None if number else 0)
    assert np.allclose(list(runs.written().values()), straight)
    assert runs.setups == 2


def test_models_are_known_by_what_they_are_trained_on(
    runs: Runs, caplog: pytest.LogCaptureFixture
) -> None:
    """A new program trains its models in another order, and has one more."""
    results = str(runs.results)

    def training(*names: str) -> Callable[[StreamingContext], None]:
        def build(ssc: StreamingContext) -> None:
            algorithms = {}
            values = {"ones": 1.0, "hundreds": 100.0, "new": 7.0}
            for name in names:
                algorithm = StreamingKMeans(k=1).setInitialCenters([[0.0]], [1.0])
                points = ssc.queueStream([[Vectors.dense([values[name]])]] * 3).setName(name)
                algorithm.trainOn(points.filter(bool))
                algorithms[name] = algorithm

            def write(time: datetime, rdd: RDD[Any]) -> None:
                centers = {
                    name: float(algorithm.latestModel().clusterCenters[0][0])
                    for name, algorithm in algorithms.items()
                }
                path = Path(results) / f"learned-{round(time.timestamp())}"
                path.write_text(json.dumps(centers))

            points.foreachRDD(write)

        return build

    runs.run(training("ones", "hundreds"), 1)
    runs.run(training("hundreds", "new", "ones"), 1, upgrade=True)
    first, second = runs.written().values()
    assert first == {"ones": 0.5, "hundreds": 50.0}
    assert np.allclose([second["ones"], second["hundreds"]], [2 / 3, 200 / 3])
    assert second["new"] == 3.5
    assert "1 begin as the program makes them, and 0 of the checkpoint are not used" in caplog.text


def test_what_a_batch_taught_before_it_was_committed_is_forgotten(runs: Runs) -> None:
    """The batch runs again, and this time it may teach nothing."""
    results = str(runs.results)

    def build(ssc: StreamingContext) -> None:
        algorithm = linear()
        marker = str(Path(results).parent / "teaches-nothing")
        stream = ssc.queueStream(ALGORITHMS["linear regression"][1] * 2)
        algorithm.trainOn(stream.filter(lambda _: not os.path.exists(marker)))

        def write(time: datetime, rdd: RDD[Any]) -> None:
            path = Path(results) / f"learned-{round(time.timestamp())}"
            path.write_text(json.dumps([float(each) for each in numbers(algorithm)]))

        stream.foreachRDD(write)

    runs.run(build, 2)
    first, second = runs.written().values()
    assert first != second
    (runs.checkpoint / "commits" / "1").unlink()
    (runs.results.parent / "teaches-nothing").touch()
    for _ in range(2):
        runs.run(build, 1)
    assert list(runs.written().values()) == [first] * 4
