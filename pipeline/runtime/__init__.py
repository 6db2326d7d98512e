"""Publishing and working. Talks to the outside only through `pipeline.core.ports`."""
