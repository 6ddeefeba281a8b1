"""Parts of the Synthesis page."""
