"""How many tokens are drafted: controllers, the cost model, acceptance, calibration."""
