"""Parts of the Consume page."""
