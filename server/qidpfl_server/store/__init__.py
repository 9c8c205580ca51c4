"""All durable state: one SQL database and one folder of blobs.

schema          the tables
database        SQLite or PostgreSQL, with settings that make each commit durable
repositories    reads and writes of the tables
transaction     the repositories inside one transaction
store           readers, and one writer that commits waiting writes together
validation      checks of stored rows
blobs           content-addressed files
"""
