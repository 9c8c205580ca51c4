"""Flower and QI-DPFL: a Flower client takes part in a paid task, and a Flower strategy pays Flower clients."""
