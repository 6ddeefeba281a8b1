"""What pages draw: one folder a page, and the subjects that several pages share."""
