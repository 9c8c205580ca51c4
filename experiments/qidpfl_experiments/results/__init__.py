"""A results folder: cells, tables, calibration and configuration. Run, analysis and report use it."""
