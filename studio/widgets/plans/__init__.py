"""Recipes, plans, their packing and exports. Used by every page that shows a plan."""
