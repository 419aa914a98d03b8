"""What runs in Spark's tasks on the executors."""
