"""Pure decisions of a checkpoint: plan, assignment, balance, failure handlers."""
