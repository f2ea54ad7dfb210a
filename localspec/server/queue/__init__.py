"""The queue in front of the engine: limits, the order of jobs, a thread for each slot."""
