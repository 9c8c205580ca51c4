"""The demo: a coordinator and ten clients, each in its own process, over HTTP."""
