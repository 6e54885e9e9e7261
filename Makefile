# make demo   run a windowed hot-word count (SECONDS=20 to end by itself)
# make test   lint, types and all tests
# make test-faults  kill a program a hundred times and compare (ten minutes or more)
# make test-long  more generated rows, runs, queries and programs (an hour or more)
# make test-cluster  kill workers, executors and drivers of a real cluster, in ten rounds
# make kafka  start a Kafka broker on this machine, and say its address
# make bench  the benchmarks, side by side with pyspark.streaming

PY := .venv/bin/python
SECONDS ?=

# The tests start hundreds of Python processes, and each would compile the same files.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test lint types unit test-long test-faults test-cluster bench format clean java mosquitto \
	kafka get-kafka postgresql

demo: java
	@$(PY) examples/hot_words.py $(if $(SECONDS),--seconds $(SECONDS))

test: lint types unit

lint: .venv/installed.lock
	@$(PY) -m ruff format --check .
	@$(PY) -m ruff check .

types: .venv/installed.lock
	@$(PY) -m mypy

unit: java mosquitto get-kafka postgresql
	@$(PY) -m pytest -n 3 --dist loadfile --no-loadscope-reorder

test-long: java
	@TIDEMILL_LONG=1 $(PY) -m pytest -n 2 --dist loadfile --no-loadscope-reorder tests/sql \
		tests/spark/compiler tests/streaming/comparison tests/streaming/test_parity.py

test-faults: java get-kafka postgresql
	@TIDEMILL_ALL_FAULTS=1 $(PY) -m pytest tests/faults tests/receivers/connectors/test_http_kills.py \
		tests/sources/kafka/faults tests/kafka/faults tests/sinks/kafka tests/sinks/sql

test-cluster: java get-kafka
	@TIDEMILL_CLUSTER_ROUNDS=10 $(PY) -m pytest tests/cluster tests/state/test_on_spark.py

bench: java
	@$(PY) -m benchmarks

format: .venv/installed.lock
	@$(PY) -m ruff format .
	@$(PY) -m ruff check --fix .

java: .venv/installed.lock
	@$(PY) -m tidemill.cli.main doctor --quiet --install

mosquitto:
	@sh tools/get_mosquitto.sh

postgresql:
	@sh tools/get_postgresql.sh

get-kafka:
	@sh tools/get_kafka.sh

kafka: java get-kafka
	@$(PY) -m tests.kafka.broker

.venv/installed.lock: requirements.lock pyproject.toml tools/make_venv.sh
	@PYTHON="$(PYTHON)" sh tools/make_venv.sh

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
