"""Parts of the SQL page."""
