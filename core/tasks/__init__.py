"""The demo: tasks, an agent, and parallel rollouts. It uses the studio only over HTTP."""
