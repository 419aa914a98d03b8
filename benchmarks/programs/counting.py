"""The aggregation of the race: records counted per key, as text."""

from pyspark.sql import DataFrame

__all__ = ["count_per_key"]


def count_per_key(records: DataFrame) -> DataFrame:
    """Count by the last four digits of the record's number: 10,000 keys."""
    key = "substring(value, 13, 4) AS key"
    counted = records.selectExpr(key).groupBy("key").count()
    return counted.selectExpr("key", "CAST(count AS STRING) AS value")
