"""The paper's experiments, run on live services: methods, calibration, figures and the table of its claims."""
