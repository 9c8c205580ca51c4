"""Tracking: the figures of every settled round for TensorBoard and MLflow, written beside the coordinator's work."""
