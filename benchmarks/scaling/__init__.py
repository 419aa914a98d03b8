"""The cost of a unit of work as one dimension of the job grows."""
