"""Whether an HDFS takes files, from the metrics of its NameNode."""

import http.client
import json

__all__ = ["takes_files"]

_STATE = "/jmx?qry=Hadoop:service=NameNode,name=FSNamesystemState"


def takes_files(host: str, web_port: int, *, timeout_s: float = 5.0) -> bool:
    """Whether safe mode is over and a DataNode has reported its disk.

    A restarted NameNode answers long before: it waits for the report of its blocks.
    """
    # Not urllib: a proxy in the environment does not apply to this machine.
    connection = http.client.HTTPConnection(host, web_port, timeout=timeout_s)
    try:
        connection.request("GET", _STATE)
        (state,) = json.loads(connection.getresponse().read())["beans"]
    except (OSError, http.client.HTTPException, ValueError, KeyError):
        return False
    finally:
        connection.close()
    operational = state["FSState"] == "Operational"
    return bool(operational and state["NumLiveDataNodes"] > 0 and state["CapacityTotal"] > 0)
