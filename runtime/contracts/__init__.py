"""The promises between the runtime and connectors: connectors implement, `runtime` calls.

Every blocking call takes a timeout in seconds. ``driver`` below means the user's own Python
process, where the coordinator runs; ``executor`` means a Python worker of a Spark task.
"""

# Each module lists its public names; a second list here could only go stale.
from sluice.runtime.contracts.committing import *  # noqa: F403 - its __all__
from sluice.runtime.contracts.coordination import *  # noqa: F403 - its __all__
from sluice.runtime.contracts.keyed import *  # noqa: F403 - its __all__
from sluice.runtime.contracts.operators import *  # noqa: F403 - its __all__
from sluice.runtime.contracts.regional import *  # noqa: F403 - its __all__
from sluice.runtime.contracts.repartitioning import *  # noqa: F403 - its __all__
from sluice.runtime.contracts.storage import *  # noqa: F403 - its __all__
from sluice.runtime.contracts.streaming import *  # noqa: F403 - its __all__
from sluice.runtime.contracts.writing import *  # noqa: F403 - its __all__
