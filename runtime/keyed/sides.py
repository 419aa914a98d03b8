"""The two sides of a join: rows of both come in one stream, each batch with rows of one side.

The repartition source of a join adds the column `SIDE` (int8) to the rows that it reads, and each
side keeps its own columns. A batch never has rows of both sides: their schemas differ.
"""

from sluice.runtime.contracts.repartitioning import SIDE_COLUMN as SIDE

__all__ = ["LEFT", "RIGHT", "SIDE"]

LEFT = 0
RIGHT = 1
