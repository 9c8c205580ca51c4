"""A Flower app: it knows nothing of QI-DPFL."""
