"""The graph of a job: operators, edges, and the regions that follow from them. Pure."""
