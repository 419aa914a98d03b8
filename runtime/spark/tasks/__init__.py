"""The work of Spark's tasks on the executors."""
