"""Where everything durable lives: one SQL database and one folder of blobs.

schema          the tables
database        SQLite or PostgreSQL, opened the way that loses nothing
transaction     what can be read and written inside one transaction
store           one writer that lets waiting writes share a commit; readers beside it
soundness       rows checked as they are read
blobs           content-addressed files
"""
