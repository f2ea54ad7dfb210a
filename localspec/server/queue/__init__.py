"""The queue in front of the engine: who is answered next, in which thread, for how long."""
