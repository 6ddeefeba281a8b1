"""The engine of the studio: capture, pool, tree, credit, plan, export. Runs without a screen."""
