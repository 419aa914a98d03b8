"""`sluice demo`: a pipeline that is killed, restarted and verified."""
