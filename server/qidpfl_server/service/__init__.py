"""The use cases of the coordinator: plain functions over the store and the pure core. No FastAPI, no SQLAlchemy."""
