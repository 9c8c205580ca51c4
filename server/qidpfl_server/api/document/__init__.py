"""What the coordinator serves about itself.

texts       tags, security schemes and events of the OpenAPI document
examples    examples of requests and answers
security    which credentials an operation takes
guides      pages of docs/ as HTML
pages       `/`, `/guide` and `/docs`, which load nothing from other hosts
"""
