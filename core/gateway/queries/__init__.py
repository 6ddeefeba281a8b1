"""Routes that are no model call and are not recorded: models, token counts, engine health, stored responses."""
