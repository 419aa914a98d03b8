"""What a coordinator does before its first barrier: recovery, settlement, rescaling."""
