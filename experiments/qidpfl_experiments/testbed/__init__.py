"""A coordinator and fleets of clients as processes on this machine, for experiments, the demo and the Python API."""
