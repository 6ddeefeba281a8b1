"""Routes that are not model calls and are not recorded: models, token counts, engine health, stored responses."""
