"""The use cases of the server: plain functions over the store and the pure core. No FastAPI, no SQLAlchemy."""
