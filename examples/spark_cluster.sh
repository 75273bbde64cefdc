#!/usr/bin/env bash
# A standalone Spark cluster with two workers, from the installed PySpark, for as long as a command takes:
#
#   examples/spark_cluster.sh spark-submit examples/spark_table.py cell spark orders orders.parquet
#   examples/spark_cluster.sh quorumcast pipeline campaign --scenarios 100 --output results
#
# On a cluster of several machines the manifest, the identity and this Python environment must be at the same
# place everywhere; the commands are the same, with --master or SPARK_MASTER naming yours.
set -euo pipefail

PYTHON=${PYTHON:-python3}
PYSPARK_PYTHON=$("$PYTHON" -c 'import sys; print(sys.executable)')
SPARK_HOME=$("$PYTHON" -c 'import pathlib, pyspark; print(pathlib.Path(pyspark.__file__).parent)')
JAVA_HOME=$("$PYTHON" -c 'from quorumcast.pipeline.java import prepare_java; print(prepare_java())')
PORT=$("$PYTHON" -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])')
WORK=$(mktemp -d)
export PYSPARK_PYTHON SPARK_HOME JAVA_HOME SPARK_LOCAL_IP=127.0.0.1
# For our commands, and for spark-submit.
export SPARK_MASTER=spark://127.0.0.1:$PORT MASTER=spark://127.0.0.1:$PORT
PATH=$(dirname "$PYSPARK_PYTHON"):$SPARK_HOME/bin:$PATH

run() {
  "$SPARK_HOME/bin/spark-class" "org.apache.spark.deploy.$1" "${@:2}" --webui-port 0 >>"$WORK/log" 2>&1 &
}
trap 'kill $(jobs -p) 2>/dev/null; wait; rm -rf "$WORK"' EXIT

run master.Master --host 127.0.0.1 --port "$PORT"
until (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; do
  kill -0 %1 2>/dev/null || { echo "the master did not start:" >&2; cat "$WORK/log" >&2; exit 1; }
  sleep 0.2
done
for worker in 1 2; do
  run worker.Worker --host 127.0.0.1 --cores 1 --memory 1g --work-dir "$WORK/$worker" "$SPARK_MASTER"
done
"$@"
