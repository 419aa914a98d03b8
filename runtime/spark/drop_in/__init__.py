"""Drop-in queries: one region whose barrier is Spark's trigger."""
