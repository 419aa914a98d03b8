"""Regions from the graph of a job: which subtasks must restart together. Pure."""

from runtime.failover.distribution import Distribution, choose_distribution, rescale_channels
from runtime.failover.graph import Edge, JobGraph, Subtask, Vertex
from runtime.failover.operators import graph_of_operators, spread
from runtime.failover.regions import FailoverRegion, failover_regions
from runtime.failover.view import GraphView, view_of_operators, view_of_record

__all__ = [
    "Distribution",
    "Edge",
    "FailoverRegion",
    "GraphView",
    "JobGraph",
    "Subtask",
    "Vertex",
    "choose_distribution",
    "failover_regions",
    "graph_of_operators",
    "rescale_channels",
    "spread",
    "view_of_operators",
    "view_of_record",
]
