"""`sluice txn`: transactions that a job left open."""
