"""The participant: a service that turns a data set into noised updates and earns rewards for them."""
