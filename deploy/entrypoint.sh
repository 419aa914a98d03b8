#!/bin/bash
# Of the image in Dockerfile. Spark on Kubernetes starts an executor as `executor`, with variables
# of its own; all else is the job.
set -euo pipefail
if [[ ${1-} != executor ]]; then
  exec python /opt/orders/orders.py "$@"
fi
spark=$(python -c 'import pyspark; print(pyspark.__path__[0])')
options=()
for ((i = 0; ; i++)); do
  name=SPARK_JAVA_OPT_$i
  [[ -v $name ]] || break
  options+=("${!name}")
done
exec java "${options[@]}" -Xms"$SPARK_EXECUTOR_MEMORY" -Xmx"$SPARK_EXECUTOR_MEMORY" \
  -cp "${SPARK_CONF_DIR-/opt/spark/conf}:${SPARK_CLASSPATH+$SPARK_CLASSPATH:}$spark/jars/*" \
  org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBackend \
  --driver-url "$SPARK_DRIVER_URL" \
  --executor-id "$SPARK_EXECUTOR_ID" \
  --cores "$SPARK_EXECUTOR_CORES" \
  --app-id "$SPARK_APPLICATION_ID" \
  --hostname "$SPARK_EXECUTOR_POD_IP" \
  --resourceProfileId "$SPARK_RESOURCE_PROFILE_ID" \
  --podName "$SPARK_EXECUTOR_POD_NAME"
