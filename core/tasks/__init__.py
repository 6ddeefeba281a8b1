"""Tasks, the demo agent that works on them, and parallel rollouts. Rewards reach the studio by HTTP only."""
