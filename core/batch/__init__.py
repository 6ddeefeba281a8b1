"""Plans: from a view and a recipe to the steps, rows and advantages of pages, fetches and exports."""
