"""Widgets of the pages: one folder per page, and folders for widgets that several pages share."""
