"""`sluice txn`: open transactions of a job."""
