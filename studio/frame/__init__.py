"""The frame around every page: the head with its status lights, and the foot of the sidebar."""
