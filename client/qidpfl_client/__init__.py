"""The client: it trains on a data set, uploads noised updates and earns rewards for them."""
