"""An Airflow DAG that copies the new records of a topic every hour, exactly once, and then ends.

A failed or killed try is repeated, and it resumes where that one stopped. If a try takes too long,
Airflow sends SIGTERM, which ends the job in order.
"""

import os
from datetime import UTC, datetime, timedelta

from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Param

HOME = os.environ.get("SLUICE_HOME", "/srv/orders")  # with the program and its environment

with DAG(
    "copy_orders",
    schedule="@hourly",
    start_date=datetime(2026, 1, 1, tzinfo=UTC),
    catchup=False,  # a run reads everything that earlier ones have left
    max_active_runs=1,  # a second start would take over from the first one
    params={
        "bootstrap": Param("127.0.0.1:9092", type="string", description="host:port"),
        "input": Param("orders", type="string"),
        "output": Param("orders-copy", type="string"),
        "checkpoint": Param("/data/checkpoints/orders", type="string"),
    },
) as dag:
    # `exec`: the task's exit code is the program's: 0 at the end, 1 after an error, 143 stopped.
    BashOperator(
        task_id="copy",
        bash_command=(
            f'exec "{HOME}/.venv/bin/python" "{HOME}/examples/kafka_to_kafka.py" --until-end'
            ' --bootstrap "$BOOTSTRAP" --input "$INPUT" --output "$OUTPUT"'
            ' --checkpoint "$CHECKPOINT"'
        ),
        env={
            "BOOTSTRAP": "{{ params.bootstrap }}",
            "INPUT": "{{ params.input }}",
            "OUTPUT": "{{ params.output }}",
            "CHECKPOINT": "{{ params.checkpoint }}",
        },
        append_env=True,
        retries=5,
        retry_delay=timedelta(seconds=30),
        execution_timeout=timedelta(minutes=50),
    )
