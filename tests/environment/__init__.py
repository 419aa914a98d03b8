"""The chaos bed: brokers, HDFS, a Spark cluster and a job in containers, with faults at random.

``python -m tests.environment chaos`` and ``python -m tests.environment soak``. ``docs/research/reliability.md`` has
the results.
"""
