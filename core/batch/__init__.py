"""From a view and a recipe to a plan: the one function behind pages, fetches and exports."""
