"""What coordinator and clients share: `core`, the paper's mathematics, and `protocol`, the words on the wire."""
