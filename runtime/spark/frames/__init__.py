"""The DataFrames of a region and the analysis of their plans."""
