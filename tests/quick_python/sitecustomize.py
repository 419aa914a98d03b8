"""Python runs this before anything else in each process of a Spark that tests start.

Spark's own Python processes would import PySpark out of its archive and compile it each time. And
Spark gives up a source's process that has not called back within 10 s, which no setting changes.
"""

from runtime.spark.python_daemon import leave_archives

leave_archives()
