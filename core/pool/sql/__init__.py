"""Users' SQL: checked, and run in a worker process."""
