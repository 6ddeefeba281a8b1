"""Access control: admission of requests, hosts and origins, session keys, their budgets, wrong keys."""
